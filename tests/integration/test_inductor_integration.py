"""The functions that upstream's users call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from diode_integration.inductor_integration import create_diode_choices, install_diode_choices
from diode_integration.install import installed, uninstall

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _leave_nothing_installed() -> Iterator[None]:
    yield
    uninstall()


def test_install_diode_choices_installs(tmp_path: Path) -> None:
    """The promised function makes a handler with the promised options, installs and returns it."""
    handler = install_diode_choices(tmp_path / "none.pt", top_k_configs=5, performance_threshold=1.2, mode="zero")
    assert installed() is handler
    assert (handler.policy.top_k_configs, handler.policy.performance_threshold) == (5, 1.2)


def test_create_diode_choices_installs_nothing(tmp_path: Path) -> None:
    """The promised factory only makes the handler."""
    handler = create_diode_choices(tmp_path / "none.pt", top_k_configs=5)
    assert handler.policy.top_k_configs == 5
    assert installed() is None
