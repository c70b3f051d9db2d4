"""Lowers convolutions, which no model ranks, without tuning where the hook keeps the vendor kernel.

With max-autotune, Inductor tunes templates of a convolution. It makes a 1 x 1 convolution a matrix product before it
asks a choices handler. The library's own convolution is no candidate then, though it is often faster.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

from diode_integration.decide.abstention import Unknown, why_vendor
from diode_integration.decide.decision import DecidedBy, Decision
from diode_integration.inductor.after_import import once_inductor_is_there, put_in_place
from diode_integration.inductor.listing import patched
from diode_store.devices.known import NVIDIA
from diode_trainer.covered import Familiarity

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from diode_integration.decide.models import ModelSet
    from diode_integration.inductor.entry import Handler
    from diode_store.records import Hardware

_LOWERING = "torch._inductor.lowering"
_ATEN = torch.ops.aten
_OPS: tuple[Any, ...] = (_ATEN.convolution, _ATEN.convolution.default, _ATEN.convolution_backward.default)
"""Convolutions to lower. Only some versions of torch have templates for the last; in others nothing is tuned."""
SELDOM_WINS = "what Inductor tunes instead is seldom faster"
"""Reason on GPUs; docs/results/whole-models-h100.md has the measurements."""


def guard(installed: Callable[[], Handler | None], undo: ExitStack) -> None:
    """Have Inductor lower convolutions without tuning where the installed handler keeps the vendor kernel."""
    once_inductor_is_there(lambda: _wrap(installed, undo), undo)


def offers_vendor() -> bool:
    """Return whether Inductor lists the vendor convolution; if not, something else has to stay."""
    from torch._inductor.utils import _use_conv_autotune_backend

    return bool(_use_conv_autotune_backend("ATEN"))


def why_kept(unknown: Unknown, models: ModelSet | None, hardware: Hardware | None) -> str | None:
    """Return why the hook keeps the vendor convolution, or None if Inductor chooses."""
    if unknown is not Unknown.AUTO:
        return why_vendor(unknown, "op", None, hardware)
    if models is None or hardware is None or hardware.vendor != NVIDIA:
        return None
    return None if models.standing(hardware).familiarity is Familiarity.UNKNOWN else SELDOM_WINS


def _wrap(installed: Callable[[], Handler | None], undo: ExitStack) -> bool:
    """Wrap the lowerings; return False if they are not registered yet."""
    lowerings = getattr(sys.modules.get(_LOWERING), "lowerings", {})
    if _ATEN.convolution.default not in lowerings:
        return False
    for op in _OPS:
        stock = lowerings.get(op)
        if stock is not None and not getattr(stock, "_is_fallback_handler", False):
            put_in_place(lowerings, op, _lowered(str(op).split(".")[1], stock, installed), undo)
    return True


def _lowered(name: str, stock: Callable[..., Any], installed: Callable[[], Handler | None]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def lower(*args: Any, **kwargs: Any) -> Any:
        owner = installed()
        device = getattr(args[0], "get_device", lambda: None)() if args else None
        if owner is None or (why := owner.why_vendors_convolution(device)) is None:
            return stock(*args, **kwargs)
        with patched(max_autotune=False, max_autotune_gemm=False):
            lowered = stock(*args, **kwargs)
        try:
            owner.settled(_decision(name, device, why))
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            owner.failed(error)
        return lowered

    return lower


def _decision(name: str, device: torch.device | None, why: str) -> Decision:
    reason = f"op: no model ranks convolutions; the vendor kernel is kept: {why}"
    return Decision(name, None, str(device or "unknown"), 0, (), None, reason, decided_by=DecidedBy.VENDOR)
