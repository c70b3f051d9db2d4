"""`diode lock`: which kernels get into a picks file, and what is said of the others."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from diode_collectors.problems.problem import parse_problem
from diode_collectors.spool.reading import measurements_in
from diode_store.candidates.names import kernel_config
from diode_store.errors import FIRST_STEP
from diode_store.exchange.picks_reading import read_picks
from diode_store.records import Outcome, Problem, TensorSpec, Timing, TimingMethod
from diode_store.system.resources import bundled_data_dir
from diode_store.warehouse.store import Store
from samples import ENVIRONMENT, H100, H200, matmul, measurement, timings_of, triton_config

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from conftest import CommandResult, RunCommand
    from diode_store.exchange.picks import Pick
    from diode_store.records import KernelConfig

VENDOR = kernel_config("mm", {})
A, B, C = (triton_config(block) for block in (32, 64, 128))
HASHED = replace(ENVIRONMENT, template_hashes={"triton::mm": "d4b9"})
NEWER = replace(ENVIRONMENT, torch="2.13.0", template_hashes={"triton::mm": "d998"})


class Locks:
    """Measures what a test says and locks it."""

    def __init__(self, store: Store, diode: RunCommand, folder: Path) -> None:
        self._store, self._diode = store, diode
        self.path = folder / "picks.json"
        self._number = 0

    def measure(self, times: Mapping[KernelConfig, float | Timing | Outcome], **overrides: Any) -> None:
        """Write one measurement: config → microseconds, or how it failed."""
        self._number += 1
        fields = {"problem": matmul(64, 256, 128), "environment": HASHED, "timings": timings_of(times), **overrides}
        self._store.write([measurement(self._number, **fields)])

    def run(self, *options: str) -> CommandResult:
        """Run the command."""
        return self._diode("lock", "--force", "-o", str(self.path), *options)

    def picks(self, *options: str) -> list[Pick]:
        """Return what was locked."""
        found = self.run(*options)
        assert found.code == 0, found.err
        return list(read_picks(self.path).picks.values())


@pytest.fixture
def locks(any_store: Store, any_url: str, diode: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locks:
    """Return an empty warehouse to measure into, on each kind of database."""
    monkeypatch.setenv("DIODE_DATABASE_URL", any_url)
    monkeypatch.setenv("DIODE_CACHE", str(tmp_path / "cache"))
    return Locks(any_store, diode, tmp_path)


def test_the_fastest_kernel_of_each_problem(locks: Locks) -> None:
    """With its time, its ties, where it was measured and the hash of its template; slower and failed ones are not."""
    locks.measure({VENDOR: 80.5, A: 80.0, B: 160.0, C: Outcome.RUNTIME_ERROR})
    locks.measure({VENDOR: 7.0}, problem=matmul(8, 8, 8))
    small, large = locks.picks("--hardware", "h200")
    assert (small.name, small.configs, small.runtime_us) == ("mm bf16 8x8x8 nn", (VENDOR,), 7.0)
    assert (large.name, large.configs, large.runtime_us) == ("mm bf16 64x256x128 nn", (A, VENDOR), 80.0)
    assert large.template_hashes == {"aten::mm": None, "triton::mm": "d4b9"}
    assert large.environment.key == ENVIRONMENT.key
    file = read_picks(locks.path)
    assert (file.device.key, file.allow_changed_template) == (H200.key, False)
    found = locks.run("--hardware", "h200")
    assert found.out == (
        f"{locks.path}: 2 picks (1 of the vendor's kernels) and 1 tie\n"
        f"use it: DIODE_PICKS={locks.path}, or torch_diode.install(picks='{locks.path}')\n"
    )
    assert found.err.startswith("hardware: NVIDIA H200 (sm_90, 132 multiprocessors)\nenvironment: ")


@pytest.mark.quick(1)
def test_the_same_warehouse_makes_the_same_bytes(locks: Locks) -> None:
    """Whichever order the measurements came in."""
    for m in (64, 8, 128, 16):
        locks.measure({VENDOR: 50.0 + m, A: 60.0}, problem=matmul(m, 256, 128))
    assert locks.run().code == 0
    first = locks.path.read_bytes()
    assert locks.run().code == 0
    assert locks.path.read_bytes() == first
    assert [pick.problem.shape.m for pick in locks.picks()] == [8, 16, 64, 128]


@pytest.mark.quick(1)
def test_environments(locks: Locks) -> None:
    """Several are an error that lists them; a version of torch or an id names one."""
    locks.measure({A: 80.0})
    locks.measure({B: 80.0}, environment=NEWER)
    locks.measure({B: 80.0}, environment=NEWER, problem=matmul(8, 8, 8))
    found = locks.run()
    assert found.code == 1
    assert "error: name one environment with --environment-id: " in found.err
    assert "torch 2.11.0+cu130, " in found.err
    assert "torch 2.13.0, " in found.err
    newer = locks.picks("--torch", "2.13")
    assert [(pick.configs, pick.template_hashes) for pick in newer] == [((B,), {"triton::mm": "d998"})] * 2
    (older,) = locks.picks("--torch", "2.11.0")
    assert older.configs == (A,)
    said = locks.run("--torch", "2.11").err
    assert "1 problem left out: measured in another environment only (--environment-id takes another)\n" in said
    wrong = locks.run("--torch", "2.1")
    assert wrong.code == 1
    assert "error: --torch: nothing was measured on NVIDIA H200 with torch '2.1'; name one environment" in wrong.err


def test_several_environments_of_one_torch(locks: Locks) -> None:
    """Then the version is not enough, and only these are listed."""
    locks.measure({A: 80.0})
    locks.measure({B: 80.0}, environment=replace(HASHED, driver="999"))
    locks.measure({B: 80.0}, environment=NEWER)
    found = locks.run("--torch", "2.11")
    assert found.code == 1
    assert (found.err.count("torch 2.11.0+cu130"), found.err.count("torch 2.13.0")) == (2, 0)


@pytest.mark.quick(1)
def test_regimes(locks: Locks) -> None:
    """Of several the one nearest to deployment counts, unless one is named; what has none of it is left out."""
    for regime, times in (("graph", {A: 80.0, B: 90.0}), ("read_flush", {A: 95.0, B: 70.0})):
        locks.measure(times, timing_method=TimingMethod("median", regime=regime, launch_hidden=True))
    locks.measure({C: 5.0}, problem=matmul(8, 8, 8), timing_method=TimingMethod(regime="graph"))
    assert [(pick.configs[0], pick.regime) for pick in locks.picks()] == [(C, "graph"), (A, "graph")]
    assert [(pick.configs[0], pick.regime) for pick in locks.picks("--regime", "read_flush")] == [(B, "read_flush")]
    locks.measure({C: 5.0}, problem=matmul(16, 8, 8), timing_method=TimingMethod())  # nobody knows how
    assert [pick.regime for pick in locks.picks("--regime", "deployed")] == ["graph", "graph"]
    assert [pick.regime for pick in locks.picks("--regime", "unknown")] == [None]
    assert "2 problems left out: not timed in the regime 'read_flush'\n" in locks.run("--regime", "read_flush").err
    unknown = locks.run("--regime", "typo")
    known = "deployed, graph, read_flush, write_flush, unknown"
    reason = f"3 problems left out: not timed in the regime 'typo' (known: {known})"
    assert (unknown.code, unknown.err.splitlines()[-1]) == (1, f"error: --regime: there is nothing to lock; {reason}")


def test_what_is_left_out(locks: Locks) -> None:
    """Problems of which no time counts are counted with the reason, and nothing is written for nothing."""
    locks.measure({A: Outcome.RUNTIME_ERROR})
    locks.measure({A: 80.0}, problem=matmul(8, 8, 8), flags=("throttled",))
    found = locks.run()
    reason = "2 problems left out: no time of theirs counts: failed, flagged, replayed, implausible or given up early"
    assert (found.code, found.err.splitlines()[-1]) == (1, f"error: there is nothing to lock; {reason}")
    assert not locks.path.exists()
    locks.measure({A: 80.0}, problem=matmul(16, 8, 8))
    assert f"{reason}\n" in locks.run().err


def test_kernels_whose_results_cannot_be_trusted(locks: Locks) -> None:
    """With 8 warps a convolution's template computes wrong results; a tie takes its place, else the problem is out."""
    blocks = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 16, "num_stages": 2, "ALLOW_TF32": False}
    eight, four = (kernel_config("triton::convolution2d", {**blocks, "num_warps": warps}) for warps in (8, 4))
    of_3x3, of_1x1, alone = (
        parse_problem(f"convolution:8x4x64x64:{kernel}").problem() for kernel in ("64x3x3", "64x1x1", "96x3x3")
    )
    for problem in (of_3x3, of_1x1):
        locks.measure({eight: 20.0, four: 20.0}, problem=problem)
    locks.measure({eight: 20.0}, problem=alone)
    picked = {pick.problem.key: pick.configs[0] for pick in locks.picks()}
    assert picked == {of_3x3.key: four, of_1x1.key: picked[of_1x1.key]}
    assert "1 problem left out: fastest with 8 warps in a convolution's template" in locks.run().err


@pytest.mark.quick(1)
def test_what_only_the_vendors_kernels_were_timed_of(locks: Locks) -> None:
    """Is left out, as nobody knows whether a template is faster; once one was timed, however slow, it is not."""
    vendor = kernel_config("aten::mm", {})
    locks.measure({vendor: 80.0}, search_space="VENDOR")
    locks.measure({A: 80.0}, problem=matmul(8, 8, 8))
    reason = "1 problem left out: timed by the vendor's kernels alone (`diode-collect --search-space VENDOR`)"
    assert f"{reason}\n" in locks.run().err
    assert [pick.configs[0] for pick in locks.picks()] == [A]
    locks.measure({vendor: 80.0, A: 95.0}, search_space="SAMPLE:12")
    assert "left out" not in locks.run().err
    assert {pick.configs[0] for pick in locks.picks()} == {A, vendor}


def test_a_template_that_nobody_recorded(locks: Locks) -> None:
    """Its picks hold in the torch that they were measured in; that is said, unless they are allowed elsewhere."""
    locks.measure({A: 80.0}, environment=ENVIRONMENT)
    said = (
        "1 pick of triton::mm: its source was not recorded, so torch 2.11.0+cu130 alone takes them "
        "(--allow-changed-template lets others)"
    )
    assert said in locks.run().err
    allowed = locks.run("--allow-changed-template")
    assert said not in allowed.err
    assert read_picks(locks.path).allow_changed_template


@pytest.mark.quick(1)
def test_a_template_that_was_recorded_later(locks: Locks) -> None:
    """What a measurement tells of its environment reaches a cache that has the environment already."""
    locks.measure({A: 80.0})
    assert len(locks.picks()) == 1
    other = kernel_config("triton::bmm", {"BLOCK_M": 16})
    locks.measure(
        {other: 80.0}, problem=matmul(8, 8, 8), environment=replace(HASHED, template_hashes={"triton::bmm": "16"})
    )
    assert [pick.template_hashes for pick in locks.picks()] == [{"triton::bmm": "16"}, {"triton::mm": "d4b9"}]


@pytest.mark.quick(1)
def test_devices(locks: Locks) -> None:
    """A file is for one; several are listed; a name that matches none says what there is."""
    locks.measure({A: 80.0})
    assert len(locks.picks()) == 1
    locks.measure({B: 80.0}, hardware=H100)
    found = locks.run()
    assert found.code == 1
    assert "a picks file is for one device; it could be any of: NVIDIA H100 80GB HBM3 (sm_90, 132 " in found.err
    (pick,) = locks.picks("--hardware", "h100")
    assert pick.configs == (B,)
    assert "no hardware matches 'a100'" in locks.run("--hardware", "a100").err


@pytest.mark.quick(1)
def test_one_op_and_a_script(locks: Locks) -> None:
    """The others stay out; --json has the counts and the notes."""
    locks.measure({A: 80.0})
    spec = TensorSpec("bfloat16", (4, 64, 64), (4096, 64, 1))
    locks.measure({kernel_config("bmm", {}): 80.0}, problem=Problem.create("bmm", (spec, spec)))
    assert [pick.problem.op for pick in locks.picks("--op", "bmm")] == ["bmm"]
    assert json.loads(locks.run("--op", "bmm", "--json").out) == {
        "file": str(locks.path),
        "hardware": "NVIDIA H200",
        "picks": 1,
        "vendor": 1,
        "ties": 0,
        "allow_changed_template": False,
        "notes": [],
    }
    assert "no 'addmm' was measured on this device" in locks.run("--op", "addmm").err


def test_a_file_that_is_there(locks: Locks, diode: RunCommand) -> None:
    """It is replaced with --force alone, and refused before any work."""
    locks.path.write_text("mine")
    refused = diode("lock", "-o", str(locks.path))
    said = f"error: --output {locks.path} exists already; name another file, or replace it with --force\n"
    assert refused == (1, "", said)
    assert locks.path.read_text() == "mine"


def test_an_empty_warehouse(locks: Locks) -> None:
    """Says how to fill it."""
    assert locks.run().err == (f"error: the warehouse holds no measurements; {FIRST_STEP}\n")


def test_picks_are_not_imported(locks: Locks, diode: RunCommand) -> None:
    """One line says why."""
    locks.measure({A: 80.0})
    assert locks.run().code == 0
    said = (
        f"error: {locks.path} is a picks file, which has the winners' times alone; import the measurements behind it\n"
    )
    assert diode("import", str(locks.path)) == (1, "", said)


def test_the_bundled_measurements(database_url: str, diode: RunCommand, tmp_path: Path) -> None:
    """From a fresh warehouse: every problem of a data set is picked, with a kernel that was timed."""
    measured = [
        m for m in measurements_in(bundled_data_dir() / "h200-2026-11-odd-sizes-0000.seg") if m.problem.op == "bmm"
    ]
    with Store.open(database_url) as store:
        store.write(measured)
    path = tmp_path / "picks.json"
    found = diode("lock", "--hardware", "h200", "--torch", "2.11", "--database", database_url, "-o", str(path))
    assert found.code == 0, found.err
    picks = read_picks(path).picks
    assert picks.keys() == {m.problem.key for m in measured}
    for each in measured:
        pick = picks[each.problem.key]
        best = min(t.runtime_us for t in each.timings if t.runtime_us and not t.is_estimate)
        assert pick.runtime_us == pytest.approx(best, rel=1e-4)
        assert pick.regime == each.timing_method.regime


GROUPED = kernel_config("_grouped_mm", {})
SMALL, LARGE = (
    kernel_config("triton::grouped_mm", {"BLOCK_M": m, "BLOCK_N": 64, "BLOCK_K": 64, "num_stages": 3, "num_warps": 4})
    for m in (32, 128)
)


def grouped(skew: float = 0.0, rows: int = 512) -> Problem:
    """Return a grouped product with a routing."""
    return parse_problem(f"grouped_mm:{rows}x256x128:4/skew{skew:g}").problem()


def test_one_pick_for_all_routings(locks: Locks) -> None:
    """A compile knows no skew, so the kernel with the lowest mean time over the routings is picked."""
    locks.measure({GROUPED: 90.0, SMALL: 20.0, LARGE: 30.0}, problem=grouped())
    locks.measure({GROUPED: 90.0, SMALL: 80.0, LARGE: 40.0}, problem=grouped(1.0))
    locks.measure({GROUPED: 90.0, SMALL: 80.0, LARGE: 41.0}, problem=grouped(2.0))
    (pick,) = locks.picks("--hardware", "h200")
    assert (pick.problem.key, pick.configs) == (grouped().key, (LARGE,))
    assert pick.runtime_us == pytest.approx(37.0)


def test_a_routing_alone(locks: Locks) -> None:
    """Without equal groups the routing that was measured counts; without a common kernel the least skewed does."""
    locks.measure({GROUPED: 50.0, SMALL: 20.0}, problem=grouped(1.0))
    locks.measure({SMALL: 20.0}, problem=grouped(0.0, 1024))
    locks.measure({LARGE: 10.0}, problem=grouped(2.0, 1024))
    first, second = locks.picks("--hardware", "h200")
    assert (first.problem.key, first.configs, first.runtime_us) == (grouped().key, (SMALL,), 20.0)
    assert (second.problem.key, second.configs, second.runtime_us) == (grouped(0.0, 1024).key, (SMALL,), 20.0)


def test_routings_in_other_regimes(locks: Locks) -> None:
    """Times of another regime do not mix with deployed ones."""
    locks.measure(
        {GROUPED: 90.0, SMALL: 20.0, LARGE: 30.0}, problem=grouped(), timing_method=TimingMethod(regime="graph")
    )
    other = TimingMethod(regime="write_flush")
    locks.measure({GROUPED: 90.0, SMALL: 80.0, LARGE: 40.0}, problem=grouped(1.0), timing_method=other)
    (pick,) = locks.picks("--hardware", "h200")
    assert (pick.configs, pick.runtime_us, pick.regime) == ((SMALL,), 20.0, "graph")


@pytest.mark.parametrize(
    "text",
    [
        "flex_attention:1x8x512x64:2x512/causal",
        "flex_decoding:8x32x1x128:8x8192",
        "flex_attention_backward:1x8x512x64/window100/block64",
    ],
)
def test_attention_has_a_pick_for_each_mask(locks: Locks, text: str) -> None:
    """The fastest config with all its block sizes; what Inductor timed with a mask of its own is left out."""
    problem = parse_problem(text).problem()
    names = ("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2") if "backward" in text else ("BLOCK_M", "BLOCK_N")
    slow, fast = (
        kernel_config(f"triton::{problem.op}", {**dict.fromkeys(names, block), "num_stages": 3, "num_warps": 4})
        for block in (32, 64)
    )
    locks.measure({slow: 90.0, fast: 20.0}, problem=problem)
    other = Problem.create(problem.op, problem.inputs, {"mask": "other"})
    locks.measure({slow: 9.0, fast: 20.0}, problem=other, flags=("stand_in_mask",))
    (pick,) = locks.picks("--hardware", "h200")
    assert (pick.problem, pick.configs, pick.runtime_us) == (problem, (fast,), 20.0)
