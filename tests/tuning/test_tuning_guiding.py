"""Half of the kernels that a tuning run times are those that a model believes fast."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from diode_collectors.problems.choices import exhaustive_configs
from diode_collectors.problems.guide import read_guide
from diode_collectors.problems.problem import SweepProblem
from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.problems.selection import ProblemRequest
from diode_collectors.sweep.devices import device_elsewhere
from diode_store.candidates.columns import ConfigColumns
from diode_store.candidates.default_space import default_configs
from diode_trainer import artifact
from diode_tuning.guiding import guide_by, guide_by_default
from diode_tuning.job import TuneRequest, TuningJob
from diode_tuning.plan import DeviceFolder, Round
from lanes import long

if TYPE_CHECKING:
    from pathlib import Path

H200, A100 = device_elsewhere("h200")[0], device_elsewhere("NVIDIA A100-SXM4-40GB")[0]
ALIGNED, BATCHED = SweepProblem("mm", 512, 4096, 1024, layout="nt"), SweepProblem("bmm", 100, 100, 64, 7)


def test_a_model_says_what_is_timed() -> None:
    """So many of the plain template, and of the persistent-TMA one where it can be used, the fastest first."""
    model = artifact.load_shipped()
    guide = guide_by(model, [ALIGNED, BATCHED], H200, SearchSpace("SAMPLE", 24))
    wanted = guide[ALIGNED.problem().key]
    assert {name: len(configs) for name, configs in wanted.items()} == {
        "triton::mm": 12,
        "triton::mm_persistent_tma": 3,
    }
    assert {name: len(of) for name, of in guide[BATCHED.problem().key].items()} == {"triton::bmm": 12}
    memory = H200.hardware.shared_memory_per_block_bytes
    everything = exhaustive_configs(ALIGNED, shared_memory_bytes=memory, tma=False)
    rows = [("triton::mm", c.block_m, c.block_n, c.block_k, 8, c.num_stages, c.num_warps, False) for c in everything]
    predicted = model.predict_us(ALIGNED.problem().shape, H200.hardware, ConfigColumns.from_rows(rows))
    by_config = dict(zip(everything, predicted.tolist(), strict=True))
    assert [by_config[config] for config in wanted["triton::mm"]] == sorted(by_config.values())[:12]


def test_problems_of_a_kind_are_timed_by_few_kernels() -> None:
    """Each by its fastest, and of the next ones by those that most of its kind have among theirs."""
    model = artifact.load_shipped()
    kin = [replace(ALIGNED, m=m, n=n) for m in (300, 1500, 9000) for n in (512, 2048, 6144)]
    space = SearchSpace("SAMPLE", 24)
    own, shared = (guide_by(model, kin, H200, space, shares_kernels=shares) for shares in (False, True))
    longer = guide_by(model, kin, H200, SearchSpace("SAMPLE", 4 * 24))
    for template, size in (("triton::mm", 12), ("triton::mm_persistent_tma", 3)):
        alone, together, ranks = ([guide[p.problem().key][template] for p in kin] for guide in (own, shared, longer))
        assert [configs[0] for configs in alone] == [configs[0] for configs in together]
        assert {len(set(configs)) for configs in (*alone, *together)} == {size}
        assert all(set(configs) <= set(fast) for configs, fast in zip(together, ranks, strict=True))
        different = [len({config for configs in of for config in configs}) for of in (alone, together)]
        assert different[1] < 0.8 * different[0]


def test_odd_rows_are_timed_by_their_own_fastest() -> None:
    """They share no kernels, so none is preferred for being another's."""
    model = artifact.load_shipped()
    odd = [replace(ALIGNED, k=k) for k in (1001, 1003, 2047)]
    guides = [guide_by(model, odd, H200, SearchSpace("SAMPLE", 24), shares_kernels=shares) for shares in (False, True)]
    assert guides[0] == guides[1]


def test_a_kernel_is_timed_once() -> None:
    """Rows of an odd number of elements are not pipelined, so that any number of stages makes the same kernel."""
    odd = replace(ALIGNED, k=1001)
    guide = guide_by(artifact.load_shipped(), [odd], H200, SearchSpace("SAMPLE", 24))
    configs = guide[odd.problem().key]["triton::mm"]
    assert len({config._replace(num_stages=1) for config in configs}) == len(configs) == 12


def test_no_tma_before_hopper() -> None:
    """An older GPU has no persistent-TMA kernels to time."""
    guide = guide_by(artifact.load_shipped(), [ALIGNED], A100, SearchSpace("SAMPLE", 24))
    assert list(guide[ALIGNED.problem().key]) == ["triton::mm"]


def test_without_a_model_half_are_default() -> None:
    """The guide has all of Inductor's list for the problem, in an order that each kind has and that stays the same."""
    kin, small, other = replace(ALIGNED, m=1000, k=2048), replace(ALIGNED, m=64), replace(ALIGNED, layout="nn")
    odd, another = replace(ALIGNED, k=1001), replace(ALIGNED, k=1003)
    guide = guide_by_default([ALIGNED, kin, small, other, odd, another, BATCHED])
    for problem, template in ((ALIGNED, "triton::mm"), (BATCHED, "triton::bmm")):
        configs = guide[problem.problem().key][template]
        assert (set(configs), len(configs)) == (default_configs(problem.problem().shape), len(set(configs)))
    first, second, third, fourth, fifth = (
        guide[problem.problem().key]["triton::mm"] for problem in (ALIGNED, kin, other, odd, another)
    )
    assert first == second != third
    of_small = guide[small.problem().key]["triton::mm"]
    assert [config for config in of_small if config in first] == [config for config in first if config in of_small]
    assert fourth != fifth
    assert sorted(first) == sorted(third) == sorted(fourth) == sorted(fifth)
    assert guide_by_default([ALIGNED]) == {ALIGNED.problem().key: {"triton::mm": first}}


def test_an_older_gpu_is_guided_by_half_as_well() -> None:
    """Enough of the guide is left where shared memory is small."""
    memory = device_elsewhere("t4")[0].hardware.shared_memory_per_block_bytes
    problem = SweepProblem("mm", 512, 4096, 1024, dtype="float16")
    wanted = guide_by_default([problem])[problem.problem().key]["triton::mm"]
    there = set(exhaustive_configs(problem, shared_memory_bytes=memory, tma=False))
    assert len([config for config in wanted if config in there]) >= 6


@pytest.mark.long
@pytest.mark.parametrize(
    ("from_scratch", "space", "guided"),
    [
        (False, "GUIDED:12", True),
        pytest.param(True, "GUIDED:12", True, marks=long),
        pytest.param(False, "SAMPLE:48", True, marks=long),
        (True, "SAMPLE:48", False),
    ],
)
def test_a_round_has_a_guide(tmp_path: Path, from_scratch: bool, space: str, guided: bool) -> None:  # noqa: FBT001
    """The shipped model guides the first round; from scratch there is none yet, and a larger sample needs no guide."""
    named = ("mm:64x64x64", "mm:512x64x64") if space == "SAMPLE:48" else ()
    request = TuneRequest(ProblemRequest(shapes=named), 60.0, str(tmp_path / "absent.db"), from_scratch)
    folder = DeviceFolder(tmp_path / "tune")
    job = TuningJob([H200], request, folder, 16)
    problems, guide = job.choose(1, Round(10.0, space), tmp_path / "interim.pt")
    assert (len(problems) > 10 or len(problems) == len(named), bool(guide)) == (True, guided)
    run = folder.begin(job.plan())
    run.choose(1, problems, guide)
    assert run.guide_file(1).exists() is guided
    if guided:
        assert set(read_guide(run.guide_file(1))) == {problem.problem().key for problem in problems}
