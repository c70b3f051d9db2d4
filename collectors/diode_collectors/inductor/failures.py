"""Classify the exceptions of a kernel's compilation and launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_store.records import Outcome

if TYPE_CHECKING:
    from diode_collectors.inductor.timer import Timer

_COMPILE_ERRORS = {"CompilationError", "PTXASError", "CUDACompileError", "CppCompileError", "NoTritonConfigsError"}


def works(timer: Timer) -> bool:
    """Return True if the device still works. A broken device reports its error again in every call."""
    try:
        timer.synchronize()
    except Exception:  # noqa: BLE001 - whatever it is
        return False
    return True


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome that an exception of a kernel's compilation or launch stands for."""
    names = {kind.__name__ for kind in type(error).__mro__}
    text = str(error).lower()
    if names & {"OutOfResources", "OutOfMemoryError"} or "out of resource" in text or "out of memory" in text:
        return Outcome.OUT_OF_RESOURCES
    if names & _COMPILE_ERRORS or "ptxas" in text:
        return Outcome.COMPILE_ERROR
    return Outcome.RUNTIME_ERROR
