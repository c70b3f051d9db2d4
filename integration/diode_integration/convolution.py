"""Convolutions, which no model ranks: where the vendor's kernel is to be kept, they are lowered as without tuning.

With max-autotune, Inductor tunes templates of a convolution, and makes a matrix product of one of 1 x 1 before anything
is asked of a choices handler; the library's own convolution is no candidate then, though it is often faster.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Protocol

import torch

from diode_integration.deferral import once_inductor_is_there, put_in_place
from diode_integration.listing import patched
from diode_integration.stats import DecidedBy, Decision

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

_LOWERING = "torch._inductor.lowering"
_ATEN = torch.ops.aten
_OPS: tuple[Any, ...] = (_ATEN.convolution, _ATEN.convolution.default, _ATEN.convolution_backward.default)
"""Of the last, some versions have templates; in others it is a fallback, of which nothing is tuned."""


class Owner(Protocol):
    """The installed handler."""

    def keeps_vendors_convolution(self) -> bool:
        """Whether the next one is to be the vendor's, without tuning."""

    def settled(self, decision: Decision) -> None:
        """Record a decision."""

    def failed(self, error: Exception) -> None:
        """Record an error that the compile survived."""


def guard(installed: Callable[[], Owner | None], undo: ExitStack) -> None:
    """Have Inductor lower convolutions as without tuning where the installed handler keeps the vendor's."""
    once_inductor_is_there(lambda: _wrap(installed, undo), undo)


def offers_vendor() -> bool:
    """Whether Inductor lists the vendor's convolution, without which something else has to stay."""
    from torch._inductor.utils import _use_conv_autotune_backend

    return bool(_use_conv_autotune_backend("ATEN"))


def _wrap(installed: Callable[[], Owner | None], undo: ExitStack) -> bool:
    """Wrap the lowerings; return False if they are still to be registered."""
    lowerings = getattr(sys.modules.get(_LOWERING), "lowerings", {})
    if _ATEN.convolution.default not in lowerings:
        return False
    for op in _OPS:
        stock = lowerings.get(op)
        if stock is not None and not getattr(stock, "_is_fallback_handler", False):
            put_in_place(lowerings, op, _lowered(str(op).split(".")[1], stock, installed), undo)
    return True


def _lowered(name: str, stock: Callable[..., Any], installed: Callable[[], Owner | None]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def lower(*args: Any, **kwargs: Any) -> Any:
        owner = installed()
        if owner is None or not owner.keeps_vendors_convolution():
            return stock(*args, **kwargs)
        with patched(max_autotune=False, max_autotune_gemm=False):
            lowered = stock(*args, **kwargs)
        try:
            owner.settled(_decision(name, args[0] if args else None))
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            owner.failed(error)
        return lowered

    return lower


def _decision(name: str, image: Any) -> Decision:
    reason = "op: no model ranks convolutions; the vendor's kernel is kept: nothing else is asked for"
    device = str(getattr(image, "get_device", lambda: "unknown")())
    return Decision(name, None, device, 0, (), None, reason, decided_by=DecidedBy.VENDOR)
