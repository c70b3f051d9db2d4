"""What a collector records of a compile in which the hook is installed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hooked import OPS, compile_op, hooked

from diode_collectors.feedback.collector import FeedbackCollector
from diode_collectors.spool.spool import Spool
from diode_store.wire.segments import read_segment
from stand_ins import DOMAIN, TileModel, card_of

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.records import Measurement


def collected(spool: Path, model: TileModel, **options: str) -> list[Measurement]:
    """Compile each op with the hook and a collector; return what reached the spool."""
    with FeedbackCollector(spool):
        for op in OPS:
            compile_op(op, hooked(model, **options))
    frames = [frame for segment in Spool(spool).sealed() for frame in read_segment(segment)]
    return [frame.measurement() for frame in frames]


def test_a_filtered_list_says_whose_filter_it_was(tmp_path: Path) -> None:
    """Timings of what the hook left carry its model's digest, so that training can leave them out."""
    measurements = collected(tmp_path / "spool", TileModel(vendor_us=20.5))
    assert [m.choice_policy for m in measurements] == ["hook:" + "a" * 64] * len(OPS)
    assert [len(m.timings) for m in measurements] == [4] * len(OPS)


def test_an_abstention_is_recorded_as_stock(tmp_path: Path) -> None:
    """Where the model abstains Inductor lists its own choices, and the record says so."""
    model = TileModel(card=card_of(replace(DOMAIN, dtypes=("bfloat16",))))
    measurements = collected(tmp_path / "spool", model, unknown="stock")
    assert [m.choice_policy for m in measurements] == ["stock"] * len(OPS)
    assert min(len(m.timings) for m in measurements) > 10
