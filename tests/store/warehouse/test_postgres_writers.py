"""Several writers on one PostgreSQL at once: no deadlock, and everything there exactly once."""

from __future__ import annotations

import hashlib
import multiprocessing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from stored import content

import samples
from diode_store.records import Hardware, Timing
from diode_store.warehouse import migrate, schema
from diode_store.warehouse.database import make_engine
from diode_store.warehouse.store import Store, WriteReport
from lanes import long
from postgres_server import PostgresServer, missing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.synchronize import Barrier

    from diode_store.records import Measurement

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

WRITERS = 4
ROUNDS = 6
NEW_PROBLEMS = 60
EACH = 10
"""New configs that a problem brings."""
DEVICES = 12
STARTERS = 8
DEADLOCKS = "SELECT sum(deadlocks)::int, sum(sessions_fatal)::int FROM pg_stat_database"
ATTRIBUTES: tuple[dict[str, Any], ...] = (
    {"l2_bytes": 1},
    {"memory_bytes": 2},
    {"max_clock_mhz": 3},
    {"extra": {"nvlink": 18}},
)


def shuffled(things: Sequence[Any], seed: object) -> list[Any]:
    """Return things in another order for every seed, the same on every run."""
    return sorted(things, key=lambda thing: hashlib.blake2b(f"{seed} {thing}".encode()).digest())


def by_config(timing: Timing) -> bytes:
    """Return what timings are sorted by to be compared."""
    return timing.config.key


def batch(writer: int, number: int) -> list[Measurement]:
    """Return a writer's measurements of a round: its own, of devices, problems and configs that all bring at once.

    Each writer has them in its own order. In every other round it knows another attribute of each device; filling
    these in lets the writers pass one after the other, so that in the rounds between the inserts can meet.
    """
    known = [ATTRIBUTES[(writer + device) % len(ATTRIBUTES)] if number % 2 else {} for device in range(DEVICES)]
    devices = [Hardware("nvidia", f"GPU {number}.{n}", "sm_90", 132, **some) for n, some in enumerate(known)]
    return [
        samples.measurement(
            uid=bytes([writer, number, *problem.to_bytes(2), *range(12)]),
            hardware=devices[problem % DEVICES],
            problem=samples.matmul(1 + number, 1 + problem, 64),
            timings=tuple(
                Timing(samples.triton_config(16, SPLIT_K=number * 10_000 + problem * EACH + config), 1.0 + problem)
                for config in shuffled(range(EACH), (writer, problem))
            ),
        )
        for problem in shuffled(range(NEW_PROBLEMS), writer)
    ]


def known_of(device: Hardware) -> Hardware:
    """Return a device with all that the writers together know of it."""
    known = {name: value for attributes in ATTRIBUTES for name, value in attributes.items()}
    number = int(device.name.removeprefix("GPU ").partition(".")[0])
    return replace(device, **known) if number % 2 else device


def seen_before() -> list[Measurement]:
    """Return a measurement of every device, from when none of its attributes was known."""
    return [
        samples.measurement(
            uid=bytes([WRITERS, number, device, *range(13)]),
            hardware=Hardware("nvidia", f"GPU {number}.{device}", "sm_90", 132),
        )
        for number in range(ROUNDS)
        for device in range(DEVICES)
    ]


def write_rounds(url: str, writer: int, together: Barrier, reports: multiprocessing.Queue[Any]) -> None:
    """Write every round, each at the same moment as everyone else; report the counts, or the error."""
    try:
        with Store.open(url) as store:
            for number in range(ROUNDS):
                measured = batch(writer, number)
                together.wait(60)
                reports.put(store.write(measured))
    except BaseException as error:
        together.abort()
        reports.put(repr(error))
        raise


def upgrade(url: str, together: Barrier, reports: multiprocessing.Queue[Any]) -> None:
    """Upgrade at the same moment as everyone else, then write; report what happened."""
    try:
        engine = make_engine(url)
        together.wait(60)
        done = migrate.upgrade(engine)
        engine.dispose()
        with Store.open(url) as store:
            written = store.write([samples.measurement(1)])
        reports.put((done.before, done.after, written.measurements))
    except BaseException as error:
        reports.put(repr(error))
        raise


def run_together(target: Any, arguments: Sequence[tuple[Any, ...]], reports_each: int) -> list[Any]:
    """Run a function in a process for each of ``arguments``, with one barrier; return all that they report."""
    context = multiprocessing.get_context("spawn")
    together, reports = context.Barrier(len(arguments)), context.Queue()
    processes = [context.Process(target=target, args=(*given, together, reports)) for given in arguments]
    for process in processes:
        process.start()
    found = []
    while len(found) < reports_each * len(processes) and not any(isinstance(report, str) for report in found):
        found.append(reports.get(timeout=120))
    for process in processes:
        process.join(120)
    return found


@long
def test_writers_racing_on_the_same_new_rows() -> None:
    """Four processes bring the same new devices, problems and configs, each in its own order.

    Nothing deadlocks, no dimension row is there twice, no attribute is lost, and every measurement is what its
    writer made.
    """
    with PostgresServer.in_temp_folder({"deadlock_timeout": "20ms"}) as server:
        url = server.create_database("fleet")
        engine = make_engine(url)
        migrate.upgrade(engine)
        engine.dispose()
        with Store.open(url) as store:
            store.write(seen_before())
        reports = run_together(write_rounds, [(url, writer) for writer in range(WRITERS)], ROUNDS)
        assert reports == [WriteReport(NEW_PROBLEMS, 0, EACH * NEW_PROBLEMS)] * ROUNDS * WRITERS
        expected = [
            replace(m, hardware=known_of(m.hardware), timings=tuple(sorted(m.timings, key=by_config)))
            for m in [*seen_before(), *(m for w in range(WRITERS) for n in range(ROUNDS) for m in batch(w, n))]
        ]
        by_uid = sorted(content(url), key=lambda m: m.uid)
        assert by_uid == sorted(expected, key=lambda m: m.uid)
        with Store.open(url) as store:
            counts = store.counts()
        new = ROUNDS * NEW_PROBLEMS
        assert [counts[name] for name in ("hardware", "problems", "configs")] == [
            ROUNDS * DEVICES,
            new + 1,
            EACH * new + 3,
        ]
        assert server.sql(DEADLOCKS) == [(0, 0)]


@long
def test_many_daemons_that_start_at_once(postgres_server: PostgresServer) -> None:
    """Eight processes upgrade an empty database at the same time: one does it, the others find it done."""
    url = postgres_server.create_database("starting")
    try:
        reports = run_together(upgrade, [(url,)] * STARTERS, 1)
        head = schema.HEAD_REVISION
        assert sorted(str(before) for before, _, _ in reports) == [*[head] * (STARTERS - 1), "None"]
        assert {after for _, after, _ in reports} == {head}
        assert sum(written for _, _, written in reports) == 1
        engine = make_engine(url)
        assert migrate.differences(engine) == []
        engine.dispose()
    finally:
        postgres_server.drop_database("starting")
