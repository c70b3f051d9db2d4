"""A warehouse with something for every page of diode serve: the bundled measurements, and what they do not have."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import samples
from decided import decision
from diode_collectors.spool.reading import measurements_in
from diode_store.devices.known import require_device
from diode_store.records import Environment, Measurement
from diode_store.system.resources import bundled_data_dir, trained_models_dir
from diode_store.warehouse.store import Store
from served import environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from diode_store.decisions import DecisionRecord
    from diode_store.records import Hardware, Timing

STRANGE = "<script>alert(1)</script>"
"""The name of a host and of a kernel."""
LATER = Environment(
    torch="2.13.0+cu130", triton="3.7.0", compute="cuda 13.0", driver="580.159.04", python="3.12.3", os="Linux x86_64"
)
_BIN = Path(sys.executable).parent
_TWICE = Path(__file__).parent / "data" / "h200-2026-11-twice-1.seg"
_AGAIN = 300
"""Problems that were timed again with a later torch and on another device."""
_DECIDED = 60
_RATIOS = (0.93, 1.0, 1.004, 0.997, 1.09, 1.0, 1.02, 1.31)
"""Times with the later torch, of those before: a few faster, a few slower, most as they were."""
_OTHER_RATIOS = (1.12, 1.25, 1.42, 1.06)


@dataclass(frozen=True)
class Filled:
    """A warehouse, and the variables under which commands find its spool."""

    database: str
    settings: Mapping[str, str]


def filled(empty: Path, folder: Path, *, is_strange: bool) -> Filled:
    """Make a warehouse in a folder.

    Args:
        empty: a migrated one without records.
        folder: where everything goes.
        is_strange: whether one host and one kernel are called as no host or kernel is.
    """
    database = str(shutil.copy(empty, folder / "warehouse.db"))
    found = Filled(database, {"XDG_DATA_HOME": str(folder / "data"), "XDG_CONFIG_HOME": str(folder / "config")})
    spool = folder / "data" / "torch-diode" / "spool"
    spool.mkdir(parents=True)
    (spool / "damaged.seg").write_bytes(b"not a segment")
    command = [str(_BIN / "diode-ingest"), "--once", "--bundled", "--database", database]
    ran = subprocess.run(command, env=environment(**found.settings), capture_output=True, text=True, check=False)
    assert (ran.returncode, "is in the quarantine" in ran.stderr) == (1, True), ran.stderr
    shutil.copy(_TWICE, spool / _TWICE.name)
    with Store.open(database) as store:
        store.write(beyond(bundled(_AGAIN)))
        if is_strange:
            store.write(strange_records())
    # As if each had come in a minute after it was measured.
    samples.sql(
        Path(database),
        "UPDATE measurements SET ingested_at = strftime('%Y-%m-%d %H:%M:%f000', measured_at, '+60 seconds')",
    )
    return found


def bundled(count: int) -> list[Measurement]:
    """Return the first bundled measurements of kernels as they run in a deployed model."""
    return list(itertools.islice(measurements_in(bundled_data_dir() / "h200-2026-11-deployed-0000.seg"), count))


def beyond(known: Sequence[Measurement]) -> Iterator[Measurement | DecisionRecord]:
    """Yield what the bundled data do not have: the same with another torch, on another device, and decisions."""
    for number, before in enumerate(known):
        yield _like(before, _RATIOS[number % len(_RATIOS)], environment=LATER, host="gpu-9")
    for number, before in enumerate(known):
        ratio = _OTHER_RATIOS[number % len(_OTHER_RATIOS)]
        yield _like(before, ratio, hardware=require_device("h100-sxm"), host="gpu-h100")
    yield from _decisions(known)


def strange_records() -> Iterator[Measurement]:
    """Yield a measurement on a host, and one of a kernel, with a name that is a script."""
    base = samples.measurement(1, hardware=require_device("h200"), host=STRANGE)
    first, *others = base.timings
    yield replace(base, timings=(first._replace(config=replace(first.config, template=STRANGE)), *others))


def new_record(number: int) -> Measurement:
    """Return one that no warehouse of these has, from a machine of its own."""
    return samples.measurement(
        number, hardware=require_device("h200"), host=f"new-{number}", measured_at=samples.MEASURED_AT
    )


def _like(before: Measurement, ratio: float, *, host: str, **changed: Hardware | Environment) -> Measurement:
    """Return a measurement whose times are those of another, but for a ratio; on its host, a day later."""
    assert before.measured_at is not None
    return replace(
        before,
        uid=hashlib.blake2b(before.uid + host.encode(), digest_size=16).digest(),
        timings=tuple(_scaled(timing, ratio) for timing in before.timings),
        measured_at=before.measured_at + timedelta(days=1),
        host=host,
        **changed,
    )


def _scaled(timing: Timing, ratio: float) -> Timing:
    times = (timing.runtime_us, timing.p10_us, timing.p90_us)
    scaled = (None if us is None else us * ratio for us in times)
    return timing._replace(**dict(zip(("runtime_us", "p10_us", "p90_us"), scaled, strict=True)))


def _decisions(known: Sequence[Measurement]) -> Iterator[DecisionRecord]:
    """Yield decisions of the shipped model: for the fastest kernel, the second, the vendor's, or one never timed."""
    card = json.loads((trained_models_dir() / "matmul_kernel_runtime_prediction" / "v4_model.json").read_text())
    for number, measured in enumerate(known[:_DECIDED]):
        timed = sorted((t.runtime_us, n, t.config) for n, t in enumerate(measured.timings) if t.runtime_us)
        best_us, _, best = timed[0]
        never = samples.triton_config(16, GROUP_M=7)
        picked = (best, timed[1][2] if len(timed) > 1 else best, measured.timings[0].config, never)[number % 4]
        yield decision(
            number,
            (picked, best_us * 1.01),
            hardware=measured.hardware,
            environment=LATER if number % 3 else measured.environment,
            problem=measured.problem,
            model_sha256=card["sha256"],
            candidates=len(timed),
            host=f"compiler-{number % 2}",
            decided_at=samples.MEASURED_AT + timedelta(days=3, minutes=number),
        )
