"""Short forms for one model: make a choices handler, install it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_integration.choices import DiodeInductorChoices
from diode_integration.install import install

if TYPE_CHECKING:
    from pathlib import Path


def create_diode_choices(
    model_path: Path | str | None = None,
    *,
    device: str = "cpu",  # noqa: ARG001 - what upstream's callers give
    **options: Any,
) -> DiodeInductorChoices:
    """Return a choices handler without installing it.

    Args:
        model_path: the checkpoint, or a model's name; None for the user's and the shipped models.
        device: ignored; upstream ran its model on this device, and the hook asks a model on the CPU.
        options: further fields of ``diode_integration.settings.HookSettings``.

    Raises:
        DiodeError: an option has a value that cannot be used.
    """
    return DiodeInductorChoices(model_path, **options)


def install_diode_choices(
    model_path: Path | str | None = None,
    *,
    top_k_configs: int | None = None,
    performance_threshold: float | None = None,
    enable_fallback: bool = True,
    **options: Any,
) -> DiodeInductorChoices:
    """Let a model choose the kernels of every later ``torch.compile`` of this process.

    Args:
        model_path: the checkpoint, or a model's name; None for the user's and the shipped models.
        top_k_configs: number of candidates that Inductor benchmarks for every product; asks for "top_k" mode.
        performance_threshold: keep candidates within this ratio of the best prediction; asks for "top_k" mode.
        enable_fallback: without a usable model, let stock Inductor choose; if False, raise.
        options: ``device`` of ``create_diode_choices``, and further fields of ``HookSettings``.

    Returns:
        The installed handler, for its ``get_stats()`` and ``decisions()``.

    Raises:
        DiodeError: an option has a value that cannot be used, or this torch has no hook.
    """
    choices = create_diode_choices(
        model_path,
        top_k_configs=top_k_configs,
        performance_threshold=performance_threshold,
        enable_fallback=enable_fallback,
        **options,
    )
    install(choices)
    return choices
