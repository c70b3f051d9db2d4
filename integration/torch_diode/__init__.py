"""Importing this package lets the shipped models choose kernels in every later ``torch.compile``.

It is the only import of torch-diode with a side effect, and a cheap one: the hook and its model are loaded when the
first compile imports Inductor. With ``DIODE_DISABLE=1`` it does nothing. If there is no usable model, if this PyTorch
has no hook for one, or if no model knows this machine's GPU, that is logged once, and compiling works as if it had not
been imported. To use models without it, see ``diode_integration``.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diode_integration.deferral import AfterInductor

__all__ = ["get_integration_status", "get_stats", "install", "reset_stats", "uninstall"]

log = logging.getLogger("torch_diode")

_deferred: AfterInductor | None = None


def install() -> bool:
    """Install the shipped models now, in place of a handler that is installed; imports Inductor.

    Returns:
        Whether a model chooses kernels now; if not, the reason is logged.
    """
    _cancel()
    from diode_store import safely

    try:
        reason = _install()
    except Exception as error:  # noqa: BLE001 - an import or a compile must not fail because of a missing optimisation
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
    """Return what the installed hook has done so far; empty when none is installed, as before the first compile."""
    choices = _handler()
    return choices.get_stats() if choices else {}


def reset_stats() -> None:
    """Have ``get_stats()`` count from 0 again; harmless when no hook is installed."""
    if (choices := _handler()) is not None:
        choices.reset_stats()


def __getattr__(name: str) -> str:
    """Return ``__version__``, which is looked up when it is asked for."""
    if name == "__version__":
        from importlib.metadata import version

        return version("torch-diode")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _install() -> str | None:
    """Install, or return the reason why no model was installed."""
    from diode_integration.base import discover_and_register_integrations, integrate_all
    from diode_integration.base import get_integration_status as status

    discover_and_register_integrations()
    engaged = integrate_all()
    if any(engaged.values()):
        return None
    return "; ".join(f"{name}: {state}" for name, state in status().items()) or "no integration could be made"


def _install_with_inductor() -> None:
    """Install as soon as Inductor has been imported."""
    from diode_integration.deferral import ENTRANCES, AfterInductor

    global _deferred  # noqa: PLW0603 - one installation a process
    if any(name in sys.modules for name in ENTRANCES):
        install()
    else:
        _deferred = AfterInductor(_install_unless_installed)
        _deferred.start()


def _install_unless_installed() -> bool:
    """Install unless the user has installed a handler; return False to be called again later."""
    ours = (module for name, module in list(sys.modules.items()) if name.startswith("diode_integration."))
    if any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in ours):
        return False  # the user is importing the hook, which cannot be used before that is done
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
    from diode_store import safely

    try:
        from diode_integration import uncovered

        uncovered.say_at_import()
    except Exception as error:  # noqa: BLE001 - the import must not fail because of a log line
        safely.log(log, logging.DEBUG, f"cannot tell whether a model knows this machine: {safely.in_words(error)}")


if os.environ.get("DIODE_DISABLE") != "1":
    _install_with_inductor()
    _say_if_uncovered()
