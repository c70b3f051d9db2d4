"""Which problems are measured first: like many others, unlike what is measured, in doubt, and cheap."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from diode_collectors.problems.problem import SweepProblem, parse_problem
from diode_collectors.problems.selection import ProblemRequest
from diode_collectors.sweep.devices import device_elsewhere
from diode_store.candidates.operands import has_whole_rows, row_lengths
from diode_store.errors import HardwareError, SettingsError
from diode_trainer import artifact
from diode_trainer.work import widest_access
from diode_tuning.choosing import choose, nearest
from diode_tuning.doubt import doubts
from diode_tuning.targets import companions, is_any_named, named_problems, standard_problems

SMALL = [SweepProblem("mm", 64 + 8 * i, 64, 64) for i in range(6)]
LARGE = [SweepProblem("mm", 4096, 4096, 4096 + 64 * i) for i in range(3)]
H200, A100 = device_elsewhere("h200")[0], device_elsewhere("NVIDIA A100-SXM4-40GB")[0]


def chosen(pool: list[SweepProblem], budget_s: float, **options: object) -> list[SweepProblem]:
    """Return what is chosen where each problem takes a second."""
    found = choose(pool, [1.0] * len(pool), budget_s, **options)  # type: ignore[arg-type]
    return [pool[i] for i in found]


def test_the_first_stands_for_most_the_second_for_the_rest() -> None:
    """Of two groups of problems that are alike, one of the larger comes first, then one of the other."""
    first, second = chosen(SMALL + LARGE, 2.0)
    assert (first in SMALL, second in LARGE) == (True, True)


def test_what_is_like_what_was_measured_comes_last() -> None:
    """A measured problem covers those that are like it, so the others come first."""
    assert chosen(SMALL + LARGE, 1.0, measured=[SMALL[2]])[0] in LARGE


def test_doubt_counts() -> None:
    """Where models are unsure of the smaller group, it comes first."""
    counts = np.array([0.1] * len(SMALL) + [3.0] * len(LARGE), dtype=np.float32)
    assert chosen(SMALL + LARGE, 1.0, counts=counts)[0] in LARGE


def test_cost_counts() -> None:
    """What costs ten times as much has to cover ten times as much."""
    pool = SMALL + LARGE
    found = choose(pool, [10.0] * len(SMALL) + [1.0] * len(LARGE), 1.0)
    assert pool[found[0]] in LARGE


@pytest.mark.parametrize(("budget_s", "expected"), [(0.0, 1), (4.0, 4), (1e9, 9)])
def test_the_budget_ends_it(budget_s: float, expected: int) -> None:
    """At least one is chosen, each once, and in the end all."""
    found = chosen(SMALL + LARGE, budget_s)
    assert (len(found), len(set(found))) == (expected, expected)


def test_nothing_to_choose_from() -> None:
    """Of nothing nothing is chosen."""
    assert choose([], [], 10.0) == []


@pytest.mark.parametrize(
    "change", [{"op": "bmm"}, {"dtype": "float32"}, {"layout": "nt"}, {"n": 65}, {"k": 60}, {"m": 640}], ids=str
)
def test_other_kinds_are_not_covered_alike(change: dict[str, object]) -> None:
    """A batch, float32, another layout, alignment or size is further away than a row more."""
    like = SweepProblem("mm", 64, 64, 64)
    other = replace(like, **change)  # type: ignore[arg-type]
    assert chosen([replace(like, m=65), other], 1.0, measured=[like]) == [other]


def test_doubts_are_one_in_the_mean() -> None:
    """What a model's members disagree about counts more, and nothing counts as nothing."""
    found = doubts(artifact.load_shipped(), SMALL + LARGE, H200.hardware)
    assert found.mean() == pytest.approx(1, abs=1e-5)
    assert found.min() > 0.05


@pytest.mark.long
def test_the_standard_set() -> None:
    """It has most in bf16, ops and layouts about as often as models, and is the same each time."""
    found = standard_problems(H200, ())
    assert found == standard_problems(H200, ())
    by_dtype = Counter(p.short_dtype for p in found)
    assert 9960 < sum(by_dtype[name] for name in ("bf16", "fp16", "tf32")) == len(found) <= 10_000
    assert by_dtype["bf16"] > by_dtype["fp16"] > by_dtype["tf32"] > 1000
    drawn = [p for p in found if p.family == "drawn"]
    assert 0.63 < len(drawn) / len(found) < 0.67
    assert 0.35 < sum(not has_whole_rows(p) for p in found) / len(found) < 0.4
    ops, layouts = Counter(p.op for p in drawn), Counter(p.layout for p in drawn)
    assert ops["mm"] > ops["addmm"] > 1.8 * max(ops["bmm"], ops["baddbmm"]) > 1000
    assert min(layouts["nn"], layouts["nt"]) > 1.9 * layouts["tn"] > 1000
    assert max(p.flops for p in drawn) <= 2.5e11
    assert max(p.flops for p in found) <= 2e12


def test_odd_problems_of_the_standard_set() -> None:
    """Their loads are of every width, those of A and of B alike or not, and many of the problems are small."""
    odd = [p for p in standard_problems(H200, ()) if not has_whole_rows(p)]
    for dtype, item_bytes, narrow in (("bf16", 2, (2, 4, 8)), ("fp16", 2, (2, 4, 8)), ("tf32", 4, (4, 8))):
        pairs = Counter(
            tuple(widest_access(length, item_bytes) for length in row_lengths(p)) for p in odd if p.short_dtype == dtype
        )
        total = sum(pairs.values())
        assert all(pairs[width, width] > total / 12 for width in narrow), (dtype, pairs)
        assert all(pairs[width, 16] + pairs[16, width] > total / 25 for width in narrow), (dtype, pairs)
    assert 0.4 < sum(p.flops < 2e8 for p in odd) / len(odd) < 0.6


def test_named_targets() -> None:
    """What is named is all there is, in the dtypes that are asked for."""
    request = ProblemRequest(shapes=("mm:16x32x64",), dtypes=("fp16", "tf32"))
    found = named_problems(request, H200)
    assert (is_any_named(request), is_any_named(ProblemRequest(dtypes=("fp16",)))) == (True, False)
    assert named_problems(ProblemRequest(), H200) == []
    assert [str(problem) for problem in found] == ["mm:16x32x64/nn/fp16", "mm:16x32x64/nn/tf32"]
    with pytest.raises(SettingsError, match="unknown family 'nobody'"):
        named_problems(ProblemRequest(families=("nobody",)), H200)


def test_what_does_not_fit_is_left_out() -> None:
    """A problem that needs more than the device's memory is no target."""
    assert named_problems(ProblemRequest(shapes=("mm:262144x262144x16384",)), H200) == []


def test_each_has_companions() -> None:
    """Each product that is named gets some that are like it, of its dtype, none of which is named."""
    named = [SweepProblem("mm", 512, 4096, 4096, layout="nt"), SweepProblem("bmm", 128, 128, 64, 16)]
    found = companions(named, H200, 20)
    assert len(set(found)) == len(found) == 20
    assert not set(found) & set(named)
    assert [sum(problem.op in {"bmm", "baddbmm"} for problem in found)] == [10]
    assert {problem.short_dtype for problem in found} == {"bf16"}
    assert companions(named, H200, -1) == companions([], H200, 5) == []


def test_the_nearest_of_each_in_turn() -> None:
    """The first of each come before the second of any, and each comes once."""
    found = nearest(SMALL + LARGE, [LARGE[0], SMALL[0]], 4)
    assert [(SMALL + LARGE)[i] for i in found] == [LARGE[0], SMALL[0], LARGE[1], SMALL[1]]
    assert nearest([], SMALL, 3) == nearest(SMALL, [], 3) == []


def test_any_op_with_kernels_on_the_device_is_a_target() -> None:
    """Scaled and grouped products too; a GPU without such kernels is named, with what the op needs."""
    request = ProblemRequest(shapes=("scaled_mm:16x256x512/row/fast", "grouped_mm:64x256x512:4", "mm:16x32x64"))
    assert [problem.op for problem in named_problems(request, H200)] == ["scaled_mm", "grouped_mm", "mm"]
    assert [problem.op for problem in named_problems(request, A100)] == ["mm"]
    with pytest.raises(HardwareError, match=r"nothing can be timed on NVIDIA A100.*: scaled_mm needs an NVIDIA GPU of"):
        named_problems(ProblemRequest(shapes=("scaled_mm:16x256x512",)), A100)


def test_other_ops_have_companions_of_their_own() -> None:
    """The standard set has none, so layers of model families join them; they are chosen by their likeness as ever."""
    named = [parse_problem("scaled_mm:16x6144x4096/row"), parse_problem("grouped_mm:2048x4096x2048:8")]
    found = companions(named, H200, 6)
    assert len(found) == 6
    assert {problem.op for problem in found} == {"scaled_mm", "grouped_mm"}
    assert {problem.op for problem in companions([*named[:1], SweepProblem("mm", 16, 64, 64)], H200, 6)} >= {"mm"}
    order = choose([*named, *found], [1.0] * 8, 8.0)
    assert sorted(order) == list(range(8))
    assert {found[i].op for i in nearest(found, named[:1], 2)} == {"scaled_mm"}


def test_doubts_of_other_ops_are_even() -> None:
    """A model that guides the standard set is not asked about them."""
    some = [parse_problem("scaled_mm:16x6144x4096/row"), SweepProblem("mm", 512, 512, 512), SweepProblem("mm", 9, 9, 9)]
    weights = doubts(artifact.load_shipped(), some, H200.hardware)
    assert weights[0] == pytest.approx(1.0)
    assert doubts(artifact.load_shipped(), some[:1], H200.hardware).tolist() == [1.0]
