"""Problems that a sweep can skip because a spool or a warehouse holds them.

A measurement counts if it is a sweep's own, made with stock choices, and trusted. Feedback of a compile and replays of
cached timings do not count. Flagged and superseded measurements stay out of every view, so they are made again.

Ask the spool before the warehouse: records move from the spool to the warehouse meanwhile.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from diode_collectors.problems.search_space import DRAWN
from diode_collectors.spool.reading import segments_of
from diode_store.command_line.render import counted
from diode_store.errors import CodecError, OtherKindError, SegmentError
from diode_store.records import STOCK_POLICY, Source, TimingMethod

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from diode_store.records import Environment, Hardware, Problem
    from diode_store.wire.codec import RecordHead
    from diode_store.wire.segments import Frame

log = logging.getLogger(__name__)


class DoneKey(NamedTuple):
    """Properties that must be equal for a sweep to skip a problem."""

    problem: bytes
    hardware: bytes
    environment: bytes
    search_space: str
    """Search space; empty when the measurement does not say."""
    sample_seed: int | None
    """Seed of the sample of configs; None for a search space without a sample."""
    write_flush: bool = False
    """True if timed behind a flush that writes, as in ``TimingMethod.has_write_flush``."""
    op: str = ""
    """Op of the problem."""

    @classmethod
    def of(
        cls,
        problem: Problem,
        hardware: Hardware,
        environment: Environment,
        search_space: str | None,
        sample_seed: int | None,
        *,
        write_flush: bool = False,
    ) -> DoneKey:
        """Return the key of an actual or planned measurement."""
        keys = problem.key, hardware.key, environment.key
        return cls.of_keys(*keys, search_space, sample_seed, write_flush=write_flush, op=problem.op)

    @classmethod
    def of_keys(
        cls,
        problem: bytes,
        hardware: bytes,
        environment: bytes,
        search_space: str | None,
        sample_seed: int | None,
        *,
        write_flush: bool,
        op: str,
    ) -> DoneKey:
        """Return the key from content keys."""
        space = search_space or ""
        seed = sample_seed if space.startswith(DRAWN) else None
        return cls(problem, hardware, environment, space, seed, write_flush, op)


def measured_in_spool(directory: Path) -> set[DoneKey]:
    """Return the keys of all records in a spool, in sealed segments and in those still being written.

    Damaged, unreadable and quarantined records do not count, so they are measured again. The function takes no lock, so
    it disturbs no writer. It misses nothing that is sealed meanwhile.

    Args:
        directory: The spool. A folder that does not exist holds nothing.

    Raises:
        SpoolError: the folder or a segment cannot be read.
    """
    done: set[DoneKey] = set()
    for path, frames in segments_of(directory):
        done |= _in_segment(path, frames)
    return done


def measured_in_warehouse(url: str) -> set[DoneKey]:
    """Return the keys of all records in a warehouse.

    Raises:
        SchemaError: there is no warehouse, or it has another revision; the message names the command to run.
        DatabaseError: the warehouse cannot be read.
    """
    import sqlalchemy as sa

    from diode_store.warehouse import schema
    from diode_store.warehouse.store import Store

    measured, problems = schema.measurements, schema.problems
    devices, environments = schema.hardware, schema.environments
    keys = problems.c.key, devices.c.key, environments.c.key, problems.c.op
    query = (
        sa.select(*keys, measured.c.search_space, measured.c.sample_seed, measured.c.flush_l2, measured.c.regime)
        .join_from(measured, problems, measured.c.problem_id == problems.c.id)
        .join(devices, measured.c.hardware_id == devices.c.id)
        .join(environments, measured.c.environment_id == environments.c.id)
        .where(measured.c.source == Source.SWEEP.value, measured.c.choice_policy == STOCK_POLICY)
        .where(sa.not_(measured.c.is_replay), measured.c.superseded_by.is_(None), measured.c.flags.is_(None))
        .distinct()
    )
    with Store.open(url) as store, store.engine.connect() as connection:
        rows = connection.execute(query)
        return {
            DoneKey.of_keys(
                bytes(p), bytes(h), bytes(e), space, seed, write_flush=_write_flush(flush_l2, regime), op=op
            )
            for p, h, e, op, space, seed, flush_l2, regime in rows
        }


def _write_flush(flush_l2: bool | None, regime: str | None) -> bool:  # noqa: FBT001 - a column
    return TimingMethod(flush_l2=flush_l2, regime=regime).has_write_flush


def _in_segment(path: Path, frames: Iterable[Frame]) -> set[DoneKey]:
    done = set()
    unread = 0
    try:
        for frame in frames:
            try:
                head = frame.head()
            except OtherKindError:
                continue
            except (SegmentError, CodecError):
                unread += 1
                continue
            if _counts(head):
                done.add(_key_of(head))
    except SegmentError as error:
        log.warning("%s: %s; its problems are measured again", path, error)
    if unread:
        log.warning("%s: %s cannot be read; measured again", path, counted(unread, "record"))
    return done


def _key_of(head: RecordHead) -> DoneKey:
    what = head.problem, head.hardware, head.environment, head.search_space, head.sample_seed
    return DoneKey.of(*what, write_flush=head.timing_method.has_write_flush)


def _counts(head: RecordHead) -> bool:
    is_a_sweeps = head.source is Source.SWEEP and head.choice_policy == STOCK_POLICY and not head.is_replay
    return is_a_sweeps and head.superseded_by is None and not head.flags
