"""Measurements that use every field, and what is true of every format that holds them all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from stored import content

from diode_store.records import Environment, Outcome, Problem, TensorSpec, Timing, TimingMethod
from samples import EVERY_FIELD

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeMeasurement, RunCommand
    from diode_store.records import Measurement

EVERYTHING = "3 measurements with 7 timings"
"""What `diode` says of the number of ``everything``."""


def everything(make: MakeMeasurement) -> list[Measurement]:
    """Return measurements that use every field, and some that use none."""
    base = make(1)
    bmm = Problem.create(
        "addmm",
        (
            TensorSpec("float16", (24,), (1,)),
            TensorSpec("float16", (8, 16), (16, 1)),
            TensorSpec("float16", (16, 24), (1, 16)),
        ),
        {"alpha": 0.5},
    )
    full = make(
        2,
        problem=bmm,
        hardware=replace(base.hardware, name="NVIDIA H100", l2_bytes=52428800, extra={"bin": 3}),
        environment=Environment(torch="2.13.0", template_hashes={"triton::mm": "abc"}, extra={"nccl": "2"}),
        timings=(
            Timing(base.timings[0].config, 0.1 + 0.2, repeats=40, p10_us=0.3, p90_us=1 / 3),
            Timing(base.timings[1].config, 1e6, is_estimate=True),
            Timing(base.timings[2].config, None, Outcome.WRONG_RESULT),
        ),
        measured_at=None,
        **{**EVERY_FIELD, "timing_method": TimingMethod("min", flush_l2=False, launch_hidden=True, regime="graph")},
    )
    return [base, full, make(3, environment=Environment(), runtimes=(None,))]


class RoundTrip(NamedTuple):
    """Two warehouses, and a folder for what goes from one to the other."""

    diode: RunCommand
    here: str
    there: str
    folder: Path

    def through(self, name: str, counts: str, *options: str) -> Path:
        """Export what is here into a file and import that there: nothing differs, and twice adds nothing.

        Args:
            name: the file's.
            counts: how much it is, in the words of `diode`.
            options: of the export.

        Returns:
            The file.
        """
        out = self.folder / name
        assert self.diode("export", "-o", str(out), *options) == (0, f"{out}: {counts}\n", "")
        assert self.diode("import", str(out), "--database", self.there).out == f"{counts} added\n"
        assert content(self.there) == content(self.here)
        again = self.diode("import", str(out), "--database", self.there)
        measurements, _, _timings = counts.partition(" with ")
        assert again.out == f"nothing new: all {measurements} were there already\n"
        return out
