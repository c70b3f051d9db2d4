"""The direct way to use a model: make a choices handler, install it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_integration.choices import DiodeInductorChoices
from diode_integration.install import install

if TYPE_CHECKING:
    from pathlib import Path


def create_diode_choices(model_path: Path | str | None = None, **options: Any) -> DiodeInductorChoices:
    """Return a choices handler without installing it.

    Args:
        model_path: the checkpoint, or a model's name; the best shipped model when None.
        options: further options of ``DiodeInductorChoices``.

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
        model_path: the checkpoint, or a model's name; the best shipped model when None.
        top_k_configs: how many candidates Inductor still benchmarks, the same for every product; given, it asks for
            "top_k" mode.
        performance_threshold: likewise, keep candidates within this ratio of the best prediction.
        enable_fallback: without a usable model, let stock Inductor choose; if False, raise.
        options: further options of ``DiodeInductorChoices``: ``mode``, ``kernel_price``, ``search_space``,
            ``hardware``, ``unknown``, ``observe``, ``corrections``, ``picks``, ``spool``.

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
