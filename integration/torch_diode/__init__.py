"""Importing this package lets your and the shipped models choose kernels in every later ``torch.compile``.

No other import of torch-diode has a side effect. The import is cheap: the first compile, which imports Inductor, loads
the hook and its model. With ``DIODE_DISABLE=1`` the import does nothing.

Without a usable model, or without a place for the hook in this PyTorch, compiles work as if the package were not
imported. The same holds if no model knows this machine's GPU. The log says so once. If a model is only near to knowing
the GPU, the log says so once, and the model is asked with a wider margin.

To use models without this import, see ``diode_integration``.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from diode_integration.inductor.after_import import AfterInductor
    from diode_integration.picks.compiled import ChosenKernels
    from diode_integration.record.report import Report

__all__ = ["get_integration_status", "get_stats", "install", "lock", "report", "reset_stats", "uninstall"]

log = logging.getLogger("torch_diode")

_deferred: AfterInductor | None = None


def install(**options: Any) -> bool:
    """Install the models now, in place of an installed handler; imports Inductor.

    Args:
        options: fields of ``diode_integration.settings.HookSettings``, such as ``mode``, ``unknown`` and ``picks``, and
            ``model``: a checkpoint or a model's name. Environment variables (DIODE_MODEL, DIODE_MODE and so on) stand
            in for missing options.

    Returns:
        Whether a model chooses kernels now; if not, the reason is logged.

    Raises:
        DiodeError: an option is unknown or has a value that cannot be used.
    """
    _cancel()
    from diode_store.errors import DiodeError
    from diode_store.values import safely

    try:
        reason = _install(options)
    except Exception as error:
        if options and isinstance(error, DiodeError):
            raise
        reason = safely.in_words(error)
    if reason is not None:
        safely.log(log, logging.WARNING, f"torch-diode chooses no kernels: {reason}")
    return reason is None


def uninstall() -> None:
    """Have stock Inductor choose again."""
    _cancel()
    if (hook := _hook()) is not None:
        from diode_integration import base

        base.withdraw_all()
        hook.uninstall()


def get_integration_status() -> dict[str, str]:
    """Return the state of each integration by name."""
    if _deferred is not None and _deferred.waiting:
        return {"torch_diode": "waiting for the first torch.compile"}
    from diode_integration.base import get_integration_status as status

    return status()


def get_stats() -> dict[str, float]:
    """Return counts and seconds of the installed hook; empty without one, as before the first compile."""
    choices = _handler()
    return choices.get_stats() if choices else {}


def reset_stats() -> None:
    """Reset ``get_stats()`` to 0; harmless without an installed hook."""
    if (choices := _handler()) is not None:
        choices.reset_stats()


def report() -> Report:
    """Return the hook's decisions, op by op, and where the seconds of compiling went; print it to read it.

    With ``DIODE_REPORT=1`` the report goes to stderr when the process ends.
    """
    from diode_integration.record.report import make_report

    return make_report(_handler())


def lock(path: Path | str, **options: Any) -> AbstractContextManager[ChosenKernels]:
    """Record the compiles in a block, whoever chose, and write their choices to a picks file at the end.

    The file is for ``install(picks=…)`` and ``DIODE_PICKS``. It is written even if the block raises. The context
    installs nothing. Picks of the same device in the file are kept, except for problems that the block compiles.

    Args:
        path: the file.
        options: ``replace=True`` replaces the file instead of adding to it. ``device``, such as "cpu", names the device
            whose choices are recorded; without it the GPU if there is one.

    Raises:
        DiodeError: at the beginning, the file is damaged or of another device; at the end, it cannot be written.
    """
    from diode_integration.picks.lock import lock as locked

    return locked(path, **options)


def __getattr__(name: str) -> str:
    """Return ``__version__``, which is looked up on demand."""
    if name == "__version__":
        from importlib.metadata import version

        return version("torch-diode")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _install(options: dict[str, Any]) -> str | None:
    """Install, or return the reason why no model was installed."""
    from diode_integration import base

    with base.restored_on_error():
        base.discover_and_register_integrations()
        if options:
            from diode_integration.matmul import create_matmul_integration

            ours = create_matmul_integration(**{"enable_fallback": False, **options})
            base.register_integration(ours, execute_order=1)
        engaged = base.integrate_all()
    if any(engaged.values()):
        return None
    states = base.get_integration_status()
    return "; ".join(f"{name}: {state}" for name, state in states.items()) or "no integration could be made"


def _install_with_inductor() -> None:
    """Install as soon as Inductor has been imported."""
    from diode_integration.inductor.after_import import ENTRANCES, AfterInductor

    global _deferred  # noqa: PLW0603 - one installation per process
    if any(name in sys.modules for name in ENTRANCES):
        install()
    else:
        _deferred = AfterInductor(_install_unless_installed)
        _deferred.start()


def _install_unless_installed() -> bool:
    """Install unless the user has installed a handler; return False to be called again later."""
    ours = (module for name, module in list(sys.modules.items()) if name.startswith("diode_integration."))
    if any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in ours):
        return False  # the user is still importing the hook
    if (hook := _hook()) is None or hook.installed() is None:
        install()
    return True


def _hook() -> Any:
    """Return the module ``diode_integration.install``; None unless it has been imported, with Inductor."""
    return sys.modules.get("diode_integration.install")


def _handler() -> Any:
    """Return the installed handler, or None."""
    return hook.installed() if (hook := _hook()) is not None else None


def _cancel() -> None:
    if _deferred is not None:
        _deferred.cancel()


def _say_if_uncovered() -> None:
    from diode_store.values import safely

    try:
        from diode_integration.decide import notices

        notices.say_at_import()
    except Exception as error:  # noqa: BLE001 - the import must not fail because of a log line
        safely.log(log, logging.DEBUG, f"cannot tell whether a model knows this machine: {safely.in_words(error)}")


def _report_at_exit() -> None:
    if _handler() is None:  # nothing was compiled, or the hook was uninstalled
        return
    from diode_store.values import safely

    try:
        print(report(), file=sys.stderr)  # noqa: T201 - what it was asked for
    except Exception as error:  # noqa: BLE001 - a program must not end in an error because of its report
        safely.log(log, logging.WARNING, f"torch-diode has no report: {safely.in_words(error)}")


if os.environ.get("DIODE_DISABLE") != "1":
    _install_with_inductor()
    _say_if_uncovered()
    if os.environ.get("DIODE_REPORT") == "1":
        atexit.register(_report_at_exit)
