"""What becomes of an op that the model is not believed on: stock Inductor tunes it, or the vendor's kernel is kept."""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from torch._inductor.utils import use_aten_gemm_kernels

from diode_integration.listing import uid_of
from diode_integration.policy import Mode
from diode_store.errors import SettingsError
from diode_store.records import is_vendor_template
from diode_trainer.features import roofline_us

if TYPE_CHECKING:
    from torch._inductor.kernel_template_choice import KernelTemplateChoice

    from diode_integration.listing import CandidateOffer
    from diode_store.records import Hardware, Problem

_LAUNCH_BOUND_US = 4.0
"""Of the least time that a device could need: below, a launch takes about as long as the kernel, and what a better one
could gain is a microsecond."""
FAILED = "failed"
"""The reason where a graph is compiled again without the model: there the vendor's kernel is kept, whatever is set."""
OVERFLOW = "overflow"
"""The reason where Triton's kernels would read memory outside the matrices: there it is kept, whatever is set, too."""
_SURE_TO_RUN = frozenset({FAILED, OVERFLOW})
_NOT_FOR_THE_OP = frozenset({"hardware", "no_model", "multi_kernel"})
"""Reasons that say nothing of what could be won."""
_APART = frozenset({"mm", "addmm", "bmm", "baddbmm"})
"""Ops whose lowering lists the vendor's kernels in a call of their own in some versions of torch, the first."""


class Unknown(StrEnum):
    """Who chooses where the model is not believed."""

    VENDOR = "vendor"
    """The vendor's kernel is kept alone; nothing is benchmarked."""
    STOCK = "stock"
    """Inductor tunes as it would without the hook."""
    AUTO = "auto"
    """The vendor's kernel where little could be won, else stock; on a device that no model knows always stock."""


def parse_unknown(unknown: Unknown | str | None, mode: Mode) -> Unknown:
    """Return what was asked for; when None the mode's own: in zero mode "vendor", else "auto".

    Raises:
        SettingsError: it is none of them.
    """
    if unknown is None:
        return Unknown.VENDOR if mode is Mode.ZERO else Unknown.AUTO
    try:
        return Unknown(unknown)
    except ValueError:
        raise SettingsError(f"unknown must be one of {', '.join(Unknown)}, not {unknown!r}") from None


def why_vendor(unknown: Unknown, reason: str, problem: Problem | None, hardware: Hardware | None) -> str | None:
    """Return why the vendor's kernel is kept alone, or None if stock Inductor chooses.

    Args:
        unknown: the setting.
        reason: why the model is not believed, one word.
        problem: the matrix product; None if it is none that torch-diode has a name for.
        hardware: the device; None if it cannot be identified.
    """
    if reason in _SURE_TO_RUN:
        return "it is sure to run"
    if unknown is not Unknown.AUTO:
        return "nothing else is asked for" if unknown is Unknown.VENDOR else None
    if reason in _NOT_FOR_THE_OP or problem is None or hardware is None:
        return None
    if roofline_us(problem.shape, hardware) < _LAUNCH_BOUND_US:
        return "it takes hardly longer than a launch"
    if problem.shape.arithmetic == "float32":
        return "float32 kernels without TF32 take long to compile and seldom win"
    return None


class VendorCalls:
    """Finds the vendor's kernels of an op, which Inductor may list in several calls; each thread has its own ops."""

    def __init__(self) -> None:
        self._thread = threading.local()

    def forget(self) -> None:
        """Begin a graph in this thread: names of nodes come again in the next."""
        self._thread.op = None

    def kept(self, offer: CandidateOffer) -> list[KernelTemplateChoice] | None:
        """Return the vendor's kernels of a call; an empty list if an earlier one had them; None if there are none."""
        vendors = [uid for uid in offer.generators if is_vendor_template(uid_of(uid))]
        choices = [choice for uid in vendors for choice in offer.stock(uid)]
        # Only the matrices: the bias is another node in the call that lists templates.
        op = (offer.op_name, *(_name(node) for node in offer.kernel_inputs.nodes()[-2:]))
        if choices:
            self._thread.op = op if offer.op_name in _APART else None
            return choices
        return [] if op == getattr(self._thread, "op", None) and use_aten_gemm_kernels() else None


def _name(node: Any) -> Any:
    return node.get_name()
