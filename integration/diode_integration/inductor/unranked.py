"""Lower ops that no model ranks without tuning them, if the hook keeps the vendor kernel.

Of a convolution ``diode_integration.convolution`` asks picks and models first.

With ``unknown="vendor"``, the default of zero mode, these are all such ops that have a vendor kernel. With "auto" they
are the convolutions on a GPU that a model knows. Inductor's max-autotune makes a 1 x 1 convolution a matrix product
before it asks a choices handler. The library's own convolution is no candidate then, though it is often faster.

Flex attention has no vendor kernel; ``diode_integration.attention`` chooses its config.
"""

from __future__ import annotations

import functools
import sys
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from diode_collectors.inductor.convolutions import CONVOLUTION
from diode_integration.decide.abstention import Unknown, why_vendor
from diode_integration.decide.decision import DecidedBy, Decision
from diode_integration.inductor.after_import import once_inductor_is_there, put_in_place
from diode_integration.inductor.listing import patched
from diode_store.devices.known import NVIDIA
from diode_trainer.covered import Familiarity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import ExitStack

    from diode_integration.decide.models import ModelSet
    from diode_integration.inductor.entry import Handler
    from diode_store.records import Hardware

_LOWERING = "torch._inductor.lowering"
_ATEN = torch.ops.aten


class Unranked(NamedTuple):
    """Ops of a kind, which Inductor tunes and no model ranks."""

    plural: str
    """Their name in a reason."""
    ops: tuple[str, ...]
    """Names below ``torch.ops``. Some versions of torch lack some, or do not tune them."""


CONVOLUTIONS = Unranked(
    "convolutions",
    ("aten.convolution", "aten.convolution.default", "aten.convolution_backward.default"),
)
UNRANKED = (CONVOLUTIONS,)
SELDOM_WINS = "what Inductor tunes instead is seldom faster"
"""Reason to keep the vendor kernel on a GPU; docs/results/whole-models-h100.md has the measurements."""


def guard(installed: Callable[[], Handler | None], undo: ExitStack) -> None:
    """Have Inductor lower ops that no model ranks without tuning, where the installed handler wants it."""
    once_inductor_is_there(lambda: _wrap(installed, undo), undo)


def offers_vendor() -> bool:
    """Return whether Inductor lists the vendor's convolution; if not, something else has to stay."""
    from torch._inductor.utils import _use_conv_autotune_backend

    return bool(_use_conv_autotune_backend("ATEN"))


def why_kept(unknown: Unknown, models: ModelSet | None, hardware: Hardware | None) -> str | None:
    """Return why the hook has an op lowered without tuning, or None if Inductor chooses."""
    if unknown is not Unknown.AUTO:
        return why_vendor(unknown, "op", None, hardware)
    if models is None or hardware is None or hardware.vendor != NVIDIA:
        return None
    return None if models.standing(hardware).familiarity is Familiarity.UNKNOWN else SELDOM_WINS


def lowered_ops(lowerings: Mapping[Any, Any]) -> Iterator[tuple[Unranked, Any]]:
    """Yield every op that no model ranks and for which Inductor has a lowering of its own."""
    for unranked in UNRANKED:
        for name in unranked.ops:
            op = operator_named(name)
            if op in lowerings and not getattr(lowerings[op], "_is_fallback_handler", False):
                yield unranked, op


def _wrap(installed: Callable[[], Handler | None], undo: ExitStack) -> bool:
    """Wrap the lowerings; return False if they are not registered yet."""
    lowerings = getattr(sys.modules.get(_LOWERING), "lowerings", {})
    if _ATEN.convolution.default not in lowerings:
        return False
    for unranked, op in list(lowered_ops(lowerings)):
        put_in_place(lowerings, op, _lowered(unranked, _short_name(op), lowerings[op], installed), undo)
    return True


def operator_named(name: str) -> Any:
    """Return an operator by its name below ``torch.ops``; None if this torch has none."""
    try:
        return attrgetter(name)(torch.ops)
    except AttributeError:
        return None


def _short_name(op: Any) -> str:
    """Return ``grouped_mm`` for ``aten._grouped_mm.default``."""
    return str(op).removeprefix("aten.").partition(".")[0].strip("_")


def _lowered(
    unranked: Unranked, name: str, stock: Callable[..., Any], installed: Callable[[], Handler | None]
) -> Callable[..., Any]:
    @functools.wraps(stock)
    def lower(*args: Any, **kwargs: Any) -> Any:
        owner = installed()
        chosen = owner.convolution(args, kwargs) if owner is not None and name == CONVOLUTION else None
        if chosen is not None:
            return chosen(lambda: stock(*args, **kwargs))
        device = getattr(args[0], "get_device", lambda: None)() if args else None
        if owner is None or (why := owner.why_untuned(device)) is None:
            return stock(*args, **kwargs)
        with patched(max_autotune=False, max_autotune_gemm=False):
            lowered = stock(*args, **kwargs)
        try:
            found = owner.device_of(device)
            where = found.name if found else str(device or "unknown")
            owner.settled(_decision(unranked, name, found, where, why), is_counted=True)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            owner.failed(error)
        return lowered

    return lower


def _decision(unranked: Unranked, name: str, device: Hardware | None, where: str, why: str) -> Decision:
    reason = f"op: no model ranks such {unranked.plural}; the vendor kernel is kept: {why}"
    return Decision(name, None, where, 0, (), None, reason, decided_by=DecidedBy.VENDOR, device=device)
