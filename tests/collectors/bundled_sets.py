"""The data sets that ship, what each holds, and what their README says of each."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diode_collectors.spool.reading import measurements_in
from diode_store.records import Measurement, Outcome
from diode_store.system.resources import bundled_data_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class BundledSet:
    """One data set."""

    name: str
    day: str
    measurements: int
    problems: int
    timings: int
    kernels: int
    of_vendor: int
    estimates: int
    outcomes: Mapping[Outcome, int]
    regimes: Mapping[str, int]
    layouts: Mapping[str, int]
    unaligned: int
    """Problems of which a row of A or B is not whole 16 bytes."""
    throttle: Mapping[str, int]
    slow: Mapping[str, int]
    """What limited the SM clock where it was below its highest → measurements."""
    slowest_mhz: int
    fewest_runs: int
    """Of what is no estimate."""
    extra: frozenset[str]
    lists: Mapping[str, tuple[str, int]] = field(hash=False)
    """Name of a list of problems → search space and seed."""
    sampled: tuple[str, int] | None = None
    """Search space and seed of a set without lists."""
    shared: int = 0
    """Measurements with kernels that problems of a kind share."""
    flags: Mapping[str, int] = field(default_factory=dict, hash=False)
    device: str = "NVIDIA H200"
    memory_bytes: int = 150_109_880_320
    """Memory that the driver leaves of the published size."""
    memory_mhz: int = 3_201
    what: str = "matrix products"
    """What the problems are, in the README."""
    completed_by: tuple[str, ...] = ()
    """Options of packing that say what records did not say yet when they were made."""

    @property
    def packed_with(self) -> tuple[str, ...]:
        """Return the options that the segment is packed with."""
        return ("--dataset", self.name, "--licence", "Apache-2.0", "--anonymous")

    @property
    def segment(self) -> Path:
        """Return the one segment."""
        return bundled_data_dir() / f"{self.name}-0000.seg"

    def list_of(self, name: str) -> Path:
        """Return a list of problems."""
        return bundled_data_dir() / f"{self.name}-{name}.txt"

    def found(self) -> tuple[Measurement, ...]:
        """Return its measurements; reading them takes a second, the first time."""
        return _measurements(self.segment)

    def of_list(self, name: str) -> list[Measurement]:
        """Return the measurements of a list's problems."""
        return [m for m in self.found() if (m.search_space, m.sample_seed) == self.lists[name]]

    def told(self) -> str:
        """Return what the README says of it."""
        sections = re.split(r"^## ", (bundled_data_dir() / "README.md").read_text(), flags=re.MULTILINE)
        return next(section for section in sections if section.startswith(f"{self.name}\n"))

    def told_in_words(self) -> str:
        """Return that without its line breaks."""
        return " ".join(self.told().replace("\\\n", " ").split())


@functools.cache
def _measurements(segment: Path) -> tuple[Measurement, ...]:
    return tuple(measurements_in(segment))


FIRST = BundledSet(
    name="h200-2026-11",
    day="2026-11-20",
    measurements=1_247,
    problems=1_247,
    timings=104_350,
    kernels=7_011,
    of_vendor=1_430,
    estimates=38_255,
    outcomes={Outcome.OK: 104_350},
    regimes={"write_flush": 1_247},
    layouts={"nt": 767, "nn": 349, "tn": 131},
    unaligned=100,
    throttle={"none": 1_087, "sw_power_cap": 160},
    slow={"sw_power_cap": 74},
    slowest_mhz=1_515,
    fewest_runs=7,
    extra=frozenset(),
    lists={
        "exhaustive": ("EXHAUSTIVE without TMA", 0),
        "sample-50": ("SAMPLE:50", 0),
        "sample-72": ("SAMPLE:72", 0),
        "fp32": ("SAMPLE:24", 0),
    },
    completed_by=(
        *(f"--families h200-2026-11-{name}.txt" for name in ("exhaustive", "sample-50", "sample-72", "fp32")),
        "--regime write_flush",
    ),
)
DEPLOYED = BundledSet(
    name="h200-2026-11-deployed",
    day="2026-11-22",
    measurements=1_624,
    problems=1_622,
    timings=94_759,
    kernels=7_116,
    of_vendor=2_018,
    estimates=25_615,
    outcomes={Outcome.OK: 94_758, Outcome.WRONG_RESULT: 1},
    regimes={"graph": 1_261, "read_flush": 363},
    layouts={"nt": 999, "nn": 433, "tn": 190},
    unaligned=559,
    throttle={"none": 1_471, "sw_power_cap": 153},
    slow={"sw_power_cap": 67, "none": 2},
    slowest_mhz=1_530,
    fewest_runs=4,
    extra=frozenset({"finals"}),
    lists={
        "sample-42": ("SAMPLE:42", 7),
        "exhaustive": ("EXHAUSTIVE", 7),
        "fp32": ("SAMPLE:16", 7),
        "again": ("SAMPLE:24", 7),
    },
)
ODD_SIZES = BundledSet(
    name="h200-2026-11-odd-sizes",
    day="2026-11-22",
    measurements=1_251,
    problems=1_251,
    timings=54_944,
    kernels=6_190,
    of_vendor=1_598,
    estimates=9_805,
    outcomes={Outcome.OK: 54_943, Outcome.WRONG_RESULT: 1},
    regimes={"graph": 1_055, "read_flush": 196},
    layouts={"nt": 656, "nn": 403, "tn": 192},
    unaligned=833,
    throttle={"none": 1_225, "sw_power_cap": 26},
    slow={"sw_power_cap": 20, "none": 3},
    slowest_mhz=1_725,
    fewest_runs=4,
    extra=frozenset({"finals"}),
    lists={
        "sample-32": ("SAMPLE:32", 7),
        "exhaustive": ("EXHAUSTIVE", 7),
        "fp32": ("SAMPLE:16", 7),
    },
)
H100_DEPLOYED = BundledSet(
    name="h100-2026-11-deployed",
    day="2026-11-27",
    measurements=1_499,
    problems=1_499,
    timings=69_834,
    kernels=6_157,
    of_vendor=1_878,
    estimates=15_141,
    outcomes={Outcome.OK: 69_704, Outcome.WRONG_RESULT: 130},
    regimes={"graph": 1_113, "read_flush": 386},
    layouts={"nt": 903, "nn": 371, "tn": 225},
    unaligned=459,
    throttle={"none": 1_409, "sw_power_cap": 90},
    slow={"sw_power_cap": 33},
    slowest_mhz=1_642,
    fewest_runs=4,
    extra=frozenset({"finals"}),
    lists={"sample-42": ("SAMPLE:42", 11), "fp32": ("SAMPLE:16", 11)},
    flags={"launch_not_hidden": 1},
    device="NVIDIA H100 80GB HBM3",
    memory_bytes=85_017_493_504,
    memory_mhz=2_619,
)
H100_EXHAUSTIVE = BundledSet(
    name="h100-2026-11-exhaustive",
    day="2026-11-27",
    measurements=39,
    problems=39,
    timings=20_542,
    kernels=5_401,
    of_vendor=51,
    estimates=2_123,
    outcomes={Outcome.OK: 20_542},
    regimes={"graph": 34, "read_flush": 5},
    layouts={"nt": 28, "nn": 9, "tn": 2},
    unaligned=15,
    throttle={"none": 39},
    slow={},
    slowest_mhz=1_980,
    fewest_runs=7,
    extra=frozenset({"finals"}),
    lists={"list": ("EXHAUSTIVE", 7)},
    device="NVIDIA H100 80GB HBM3",
    memory_bytes=85_017_493_504,
    memory_mhz=2_619,
)
H100_TUNED = BundledSet(
    name="h100-2026-11-tuned",
    day="2026-11-25",
    measurements=7_261,
    problems=5_522,
    timings=104_071,
    kernels=6_074,
    of_vendor=9_307,
    estimates=18_688,
    outcomes={Outcome.OK: 104_027, Outcome.WRONG_RESULT: 44},
    regimes={"graph": 5_239, "read_flush": 2_022},
    layouts={"nt": 2_490, "nn": 1_819, "tn": 1_213},
    unaligned=2_696,
    throttle={"none": 6_401, "sw_power_cap": 860},
    slow={"sw_power_cap": 824, "none": 27},
    slowest_mhz=1_560,
    fewest_runs=4,
    extra=frozenset({"finals"}),
    lists={},
    sampled=("GUIDED:12", 0),
    shared=3_525,
    device="NVIDIA H100 80GB HBM3",
    memory_bytes=85_017_493_504,
    memory_mhz=2_619,
)
LOW_PRECISION = BundledSet(
    name="h200-2026-11-low-precision",
    day="2026-11-28",
    measurements=1_898,
    problems=1_875,
    timings=71_391,
    kernels=3_803,
    of_vendor=1_898,
    estimates=23_547,
    outcomes={
        Outcome.OK: 71_259,
        Outcome.WRONG_RESULT: 93,
        Outcome.OUT_OF_RESOURCES: 28,
        Outcome.RUNTIME_ERROR: 11,
    },
    regimes={"read_flush": 1_132, "graph": 766},
    layouts={"nt": 1_407, "nn": 411, "tn": 57},
    unaligned=0,
    throttle={"none": 1_366, "sw_power_cap": 532},
    slow={"sw_power_cap": 403, "none": 13},
    slowest_mhz=1_410,
    fewest_runs=4,
    extra=frozenset({"finals"}),
    lists={"guided-56": ("GUIDED:56", 0), "exhaustive": ("EXHAUSTIVE", 0)},
    flags={"clock_unsteady": 2},
)
ATTENTION = BundledSet(
    name="h200-2026-11-attention-convolutions",
    day="2026-11-29",
    measurements=694,
    problems=694,
    timings=12_493,
    kernels=584,
    of_vendor=677,
    estimates=3_322,
    outcomes={Outcome.OK: 12_213, Outcome.OUT_OF_RESOURCES: 280},
    regimes={"graph": 371, "read_flush": 323},
    layouts={"nt": 500, "tt": 156, "nn": 38},
    unaligned=0,
    throttle={"none": 593, "sw_power_cap": 101},
    slow={"sw_power_cap": 101},
    slowest_mhz=1_822,
    fewest_runs=4,
    extra=frozenset({"finals"}),
    lists={"default": ("DEFAULT", 0), "sample-24": ("SAMPLE:24", 0), "sample-20": ("SAMPLE:20", 0)},
    what="convolutions and calls of flex attention",
)
SETS = (H100_DEPLOYED, H100_EXHAUSTIVE, H100_TUNED, FIRST, ATTENTION, DEPLOYED, LOW_PRECISION, ODD_SIZES)
"""In the order of their segments' names."""
PLAIN = tuple(data for data in SETS if data not in (LOW_PRECISION, ATTENTION))
"""Sets of mm, addmm, bmm and baddbmm."""
LATER = (H100_DEPLOYED, H100_EXHAUSTIVE, H100_TUNED, DEPLOYED, ODD_SIZES)
"""Sets that were timed as kernels run in a deployed model."""
ON_H100 = (H100_DEPLOYED, H100_EXHAUSTIVE, H100_TUNED)
FAILURES = sum(number for data in SETS for outcome, number in data.outcomes.items() if outcome != Outcome.OK)


def all_measurements() -> Sequence[Measurement]:
    """Return every bundled measurement."""
    return [measurement for data in SETS for measurement in data.found()]
