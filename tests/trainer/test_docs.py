from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store import resources
from diode_trainer import catalogue
from diode_trainer.features import CONFIG_FEATURES, FEATURE_VERSION, PROBLEM_FEATURES

if TYPE_CHECKING:
    import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def test_every_feature_is_documented() -> None:
    """The page names each feature once, and no other."""
    section = PAGE.partition("## Features")[2]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted((*PROBLEM_FEATURES, *CONFIG_FEATURES))
    assert f"version {FEATURE_VERSION}." in section


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's Python example is right, with the model that really ships."""
    monkeypatch.setattr(catalogue, "trained_models_dir", resources.trained_models_dir)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    scope: dict[str, object] = {}
    exec(code, scope)  # noqa: S102 - our own page
    assert scope["rows"]
