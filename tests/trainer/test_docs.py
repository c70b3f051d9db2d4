from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.system import resources
from diode_trainer import catalogue
from diode_trainer.feature_kinds import ATTENTION, CONVOLUTIONS, PRODUCTS

if TYPE_CHECKING:
    import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "models.md").read_text(encoding="utf-8")
FEATURES = (DOCS / "features.md").read_text(encoding="utf-8")


def features_in(text: str) -> list[str]:
    """Return the features that the tables of a text name, sorted."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return sorted(name for row in rows for name in re.findall(r"`(\w+)`", row))


def test_every_feature_is_documented() -> None:
    """The page names each feature once, and no other; those of a kernel of attention without their endings."""
    products, alone = FEATURES.split("## Flex attention")
    attention, convolutions = alone.split("## Convolutions")
    assert features_in(products) == sorted((*PRODUCTS.problem, *PRODUCTS.config))
    assert f"version {PRODUCTS.version}." in products
    config = {re.sub("_of_(queries|keys)$", "", name) for name in ATTENTION.config}
    assert features_in(attention) == sorted((*ATTENTION.problem, *config))
    assert f"version {ATTENTION.version}." in attention
    assert features_in(convolutions) == sorted((*CONVOLUTIONS.problem, *CONVOLUTIONS.config))
    assert f"version {CONVOLUTIONS.version}." in convolutions


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's Python example is right, with the model that really ships."""
    monkeypatch.setattr(catalogue, "trained_models_dir", resources.trained_models_dir)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    scope: dict[str, object] = {}
    exec(code, scope)  # noqa: S102 - our own page
    assert scope["rows"]
