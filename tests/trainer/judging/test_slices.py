from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from synthetic import MM, examples

from diode_store.errors import SettingsError
from diode_trainer.judging.judgement import judge_problems
from diode_trainer.judging.slices import SLICES, parts, slices
from diode_trainer.scoring import Prediction

if TYPE_CHECKING:
    from diode_store.records import ProblemShape
    from diode_trainer.judging.judgement import ProblemJudgement

GOOD, BAD = np.array([1.0, 2.0]), np.array([2.0, 1.0])


def judgement(
    shape: ProblemShape, predicted: np.ndarray = GOOD, times: tuple[float, float] = (10.0, 20.0), family: str = "drawn"
) -> ProblemJudgement:
    """Return how a problem of two configs, the vendor's and a Triton kernel, was judged."""
    (found,) = judge_problems([replace(examples(times, shape), family=family)], [Prediction.without_members(predicted)])
    return found


def test_figures_of_each_part() -> None:
    """Rows of 2046 bytes are aligned to 2 bytes only; the figures are of the problems of each part alone."""
    found = slices([judgement(MM), judgement(replace(MM, k=1023), BAD)], ["alignment"])
    assert {part: report.regret[1].geomean for part, report in found["alignment"].items()} == {
        "16 bytes": 1.0,
        "2 bytes": 2.0,
    }


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("op", ["addmm", "mm"]),
        ("dtype", ["bfloat16", "tf32"]),
        ("layout", ["nn", "nt"]),
        ("alignment", ["16 bytes", "4 bytes"]),
        ("size", ["1 to 10 GFLOP", "100 GFLOP or more"]),
        ("time", ["10 to 30 us", "1 ms or more"]),
        ("winner", ["Triton", "vendor"]),
        ("family", ["drawn", "llama3-8b"]),
        ("regime", ["unknown"]),
    ],
)
def test_parts_in_their_order(by: str, expected: list[str]) -> None:
    """Parts of sizes, times and alignments come in their own order, the others in the alphabet's."""
    other = replace(MM, op="addmm", dtype="float32", tf32=True, layout="nt", k=1023, m=2**19)
    found = [judgement(MM), judgement(other, BAD, (4000.0, 2000.0), "llama3-8b")]
    assert list(parts(found, by)) == expected
    assert list(parts(found[::-1], by)) == expected


def test_every_slice_holds_every_problem() -> None:
    """However it is cut, no problem is lost and none counts twice."""
    found = [judgement(MM), judgement(replace(MM, k=1023), BAD)]
    assert {by: sum(report.problems for report in of.values()) for by, of in slices(found).items()} == dict.fromkeys(
        SLICES, 2
    )


def test_an_unknown_slice() -> None:
    """What cannot be cut by is refused with what can."""
    with pytest.raises(SettingsError, match="cannot cut by 'colour'; choose one of op, dtype, layout, alignment"):
        parts([], "colour")
