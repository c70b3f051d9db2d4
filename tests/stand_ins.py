"""Models whose predictions a test knows beforehand, and what the tests ask them about."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_integration.decide.abstention import Abstention, Question, who_ranks
from diode_store.devices.known import known_device
from diode_store.ops import OPS
from diode_store.records import is_vendor_template
from diode_trainer.card import MATMUL_PURPOSE, Card, Domain
from diode_trainer.covered import CoveredHardware

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from diode_integration.decide.models import ModelSet
    from diode_integration.decide.ranking import Predictor
    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, Problem, ProblemShape

H200 = known_device("NVIDIA H200")
DOMAIN = Domain(
    hardware=(CoveredHardware("NVIDIA H200", "sm_90", 132),),
    ops=("mm", "addmm", "bmm"),
    dtypes=("float32", "bfloat16"),
    layouts=("nn", "nt", "tn"),
    templates=("triton::mm", "triton::bmm", "aten::mm", "aten::addmm", "aten::bias_addmm", "aten::bmm"),
    shapes={"b": (1, 64), "m": (1, 4096), "n": (1, 4096), "k": (1, 4096)},
)
OTHER_OPS = ("int_mm", "scaled_mm", "mm_plus_mm", "grouped_mm", "scaled_grouped_mm")
KNOWS_OTHERS = replace(
    DOMAIN,
    ops=(*DOMAIN.ops, *OTHER_OPS),
    dtypes=(*DOMAIN.dtypes, "float8_e4m3fn", "float8_e5m2", "int8"),
    templates=(
        *DOMAIN.templates,
        *dict.fromkeys(uid for op in OTHER_OPS for uid in (OPS[op].template, *OPS[op].vendors)),
    ),
    shapes={},
)
"""Domain of a model that knows every op."""


def card_of(domain: Domain = DOMAIN) -> Card:
    """Return the card of a stand-in."""
    return Card("stand-in", MATMUL_PURPOSE, "base", 1, domain)


@dataclass
class TileModel:
    """Predicts a time from the tile alone: each later step away from the favourite costs 5%."""

    vendor_us: float = 10.0
    template_us: float = 20.0
    """Of the favourite tile."""
    favourite: tuple[int, int, int] = (64, 64, 32)
    sha256: str = "a" * 64
    card: Card = field(default_factory=card_of)
    asked: int = 0

    def predict_us(self, _shape: ProblemShape, _device: Hardware, columns: ConfigColumns) -> NDArray[np.float64]:
        """Return microseconds, shape (n,)."""
        self.asked += 1
        steps = sum(
            np.abs(np.log2(np.maximum(column, 1) / wanted))
            for column, wanted in zip((columns.block_m, columns.block_n, columns.block_k), self.favourite, strict=True)
        )
        steps = steps + 0.1 * np.abs(columns.num_warps - 4) + 0.1 * np.abs(columns.num_stages - 3)
        predicted = self.template_us * 1.05**steps
        return np.where(columns.template_mask(is_vendor_template), self.vendor_us, predicted)


class BrokenModel(TileModel):
    """Fails whenever it is asked."""

    def predict_us(self, *_asked: object) -> NDArray[np.float64]:
        """Raise what a bug would raise."""
        raise ZeroDivisionError("a bug in the model")


class AbstainedError(Exception):
    """No model ranks a product."""


def question(
    models: ModelSet,
    problem: Problem,
    hardware: Hardware,
    others: Sequence[Problem] = (),
    *,
    may_benchmark: bool = True,
    defect: tuple[str, str] | None = None,
) -> Question:
    """Return a question about a product of a call."""
    return Question(models, "", hardware, "cuda", problem, others=others, may_benchmark=may_benchmark, defect=defect)


def asked_about(models: ModelSet, problem: Problem, hardware: Hardware, others: Sequence[Problem] = ()) -> Predictor:
    """Return the predictor that ranks a product; raise if none does."""
    asked = who_ranks(question(models, problem, hardware, others))
    if isinstance(asked, Abstention):
        raise AbstainedError(str(asked))
    return asked.predictor


def abstention(models: ModelSet, problem: Problem, hardware: Hardware, **facts: Any) -> str:
    """Return why no model ranks a product."""
    found = who_ranks(question(models, problem, hardware, **facts))
    assert isinstance(found, Abstention), found
    return str(found)
