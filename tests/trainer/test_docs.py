from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.system import resources
from diode_trainer import catalogue
from diode_trainer.features import CONFIG_FEATURES, FEATURE_VERSION, PROBLEM_FEATURES

if TYPE_CHECKING:
    import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "models.md").read_text(encoding="utf-8")
FEATURES = (DOCS / "features.md").read_text(encoding="utf-8")


def test_every_feature_is_documented() -> None:
    """The page names each feature once, and no other."""
    rows = [line.split("|")[1] for line in FEATURES.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted((*PROBLEM_FEATURES, *CONFIG_FEATURES))
    assert f"version {FEATURE_VERSION}." in FEATURES


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's Python example is right, with the model that really ships."""
    monkeypatch.setattr(catalogue, "trained_models_dir", resources.trained_models_dir)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    scope: dict[str, object] = {}
    exec(code, scope)  # noqa: S102 - our own page
    assert scope["rows"]
