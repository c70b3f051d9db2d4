"""Models whose predictions a test knows beforehand, and what the tests ask them about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from diode_store.devices import known_device
from diode_store.records import is_vendor_template
from diode_trainer.card import MATMUL_PURPOSE, Card, CoveredHardware, Domain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape

H200 = known_device("NVIDIA H200")
DOMAIN = Domain(
    hardware=(CoveredHardware("NVIDIA H200", "sm_90", 132),),
    ops=("mm", "addmm", "bmm"),
    dtypes=("float32", "bfloat16"),
    layouts=("nn", "nt", "tn"),
    templates=("triton::mm", "triton::bmm", "aten::mm", "aten::addmm", "aten::bias_addmm", "aten::bmm"),
    shapes={"b": (1, 64), "m": (1, 4096), "n": (1, 4096), "k": (1, 4096)},
)


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
