"""Importing this package lets the shipped models choose kernels in every later ``torch.compile``.

It is the only import of torch-diode with a side effect. It does nothing when ``DIODE_DISABLE=1`` is set, and warns,
once, when there is no usable model or this PyTorch has no hook for one; compiling then works as if it had not been
imported. To use models without it, see ``diode_integration``.
"""

from __future__ import annotations

import os
import warnings

__all__ = ["TorchDiodeWarning", "get_integration_status", "get_stats", "install", "uninstall"]


class TorchDiodeWarning(UserWarning):
    """torch-diode was imported but does not choose kernels."""


def install() -> bool:
    """Install the shipped models, as importing this package does.

    Returns:
        Whether a model chooses kernels now; if not, a ``TorchDiodeWarning`` says why.
    """
    try:
        reason = _install()
    except Exception as error:  # noqa: BLE001 - an import must not fail for lack of an optimisation
        reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        warnings.warn(f"torch-diode chooses no kernels: {reason}", TorchDiodeWarning, stacklevel=2)
    return reason is None


def uninstall() -> None:
    """Have stock Inductor choose again."""
    from diode_integration import base
    from diode_integration import install as installation

    base.withdraw_all()
    installation.uninstall()


def get_integration_status() -> dict[str, str]:
    """Return by name how far each integration came."""
    from diode_integration.base import get_integration_status as status

    return status()


def get_stats() -> dict[str, float]:
    """Return what the installed hook did so far; empty when none is installed."""
    from diode_integration.install import installed

    choices = installed()
    return choices.get_stats() if choices else {}


def __getattr__(name: str) -> str:
    """Return ``__version__``, which is looked up when it is asked for."""
    if name == "__version__":
        from importlib.metadata import version

        return version("torch-diode")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _install() -> str | None:
    """Install, or return why not."""
    from diode_integration.base import discover_and_register_integrations, integrate_all
    from diode_integration.base import get_integration_status as status

    discover_and_register_integrations()
    engaged = integrate_all()
    if any(engaged.values()):
        return None
    return "; ".join(f"{name}: {state}" for name, state in status().items()) or "no integration could be made"


if os.environ.get("DIODE_DISABLE") != "1":
    install()
