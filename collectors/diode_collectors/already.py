"""What a sweep need not measure again: it is in a spool, in a file or in a warehouse.

A measurement counts if it is a sweep's own (no feedback of a compile, no replay of cached timings), its choices are
the stock ones, and it is trusted: a flagged or superseded one stays out of every view, so measuring it again is not
pointless. ``count_flagged`` counts flagged ones too.

Ask the spool before the warehouse: what is ingested in between moves from the one to the other.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from diode_collectors.files import spool_errors
from diode_collectors.reading import measurements_in_file
from diode_collectors.segment import OPEN_SUFFIX, SEALED_SUFFIX, read_segment
from diode_collectors.spool import Spool
from diode_store.codec import RecordHead, decode_head
from diode_store.errors import CodecError, SegmentError
from diode_store.records import STOCK_POLICY, Source
from diode_store.render import counted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from diode_store.exchange.context import ImportContext
    from diode_store.records import Environment, Hardware, Measurement, Problem

log = logging.getLogger(__name__)

_SAMPLE = "SAMPLE"


class DoneKey(NamedTuple):
    """What makes measuring again pointless: all of it is the same."""

    problem: bytes
    hardware: bytes
    environment: bytes
    search_space: str
    """Empty when the measurement does not say."""
    sample_seed: int | None
    """What the sample of configs was drawn with; None for a search space that is no sample."""

    @classmethod
    def of(
        cls,
        problem: Problem,
        hardware: Hardware,
        environment: Environment,
        search_space: str | None,
        sample_seed: int | None,
    ) -> DoneKey:
        """Return the key of what was or would be measured."""
        return cls.of_keys(problem.key, hardware.key, environment.key, search_space, sample_seed)

    @classmethod
    def of_keys(
        cls, problem: bytes, hardware: bytes, environment: bytes, search_space: str | None, sample_seed: int | None
    ) -> DoneKey:
        """Return it by the content keys."""
        space = search_space or ""
        return cls(problem, hardware, environment, space, sample_seed if space.startswith(_SAMPLE) else None)


def measured_in_spool(directory: Path, *, count_flagged: bool = False) -> set[DoneKey]:
    """Return what the segments in a spool hold, sealed ones and those a writer is at work on.

    What is damaged or cannot be read is not counted, so it is measured again; what is in quarantine likewise. Takes
    no lock, so it disturbs no writer, and misses nothing that was sealed meanwhile.

    Args:
        directory: the spool; one that does not exist holds nothing.
        count_flagged: count measurements that carry flags.

    Raises:
        SpoolError: the folder or a segment cannot be read.
    """
    spool = Spool(directory)
    done: set[DoneKey] = set()
    # Unsealed ones first: one that is sealed between the two listings is found under its new name.
    for listing in (spool.unsealed, spool.sealed):
        for path in listing():
            done |= _in_segment(path, count_flagged=count_flagged)
    return done


def measured_in_files(
    paths: Iterable[Path], context: ImportContext, *, sample_seed: int | None = None, count_flagged: bool = False
) -> set[DoneKey]:
    """Return what files hold: segments, JSON Lines and upstream's data sets.

    Other formats than segments need not say what they are of: whoever names such a file here says that it is a
    sweep's, made as ``context`` says. One that does say so, in our own export, is taken at its word. Upstream's data
    sets tell no input layouts, so every problem of theirs counts as row-major.

    Args:
        paths: the files.
        context: the hardware, environment and search space of files that do not say.
        sample_seed: the seed of samples in files that do not say.
        count_flagged: count measurements that carry flags.

    Raises:
        SpoolError: a segment cannot be read.
        ImportFileError: another file cannot be read, or a line of it is bad.
    """
    done: set[DoneKey] = set()
    for path in paths:
        if path.suffix in (SEALED_SUFFIX, OPEN_SUFFIX):
            if not path.exists():  # a spool's may have been ingested; a person's was misspelt
                with spool_errors(path, "read the segment"):
                    raise FileNotFoundError(2, "No such file", str(path))
            done |= _in_segment(path, count_flagged=count_flagged)
        else:
            done |= _in_file(path, context, sample_seed, count_flagged=count_flagged)
    return done


def measured_in_warehouse(
    url: str, *, hardware: Hardware | None = None, environment: Environment | None = None, count_flagged: bool = False
) -> set[DoneKey]:
    """Return what a warehouse holds.

    Args:
        url: where it is.
        hardware: only what was measured on this.
        environment: only what was measured in this.
        count_flagged: count measurements that carry flags.

    Raises:
        SchemaError: there is no warehouse, or one of another revision; the message names the command to run.
        DatabaseError: it cannot be read.
    """
    import sqlalchemy as sa

    from diode_store import schema
    from diode_store.store import Store

    measured, problems = schema.measurements, schema.problems
    devices, environments = schema.hardware, schema.environments
    query = (
        sa.select(problems.c.key, devices.c.key, environments.c.key, measured.c.search_space, measured.c.sample_seed)
        .join_from(measured, problems, measured.c.problem_id == problems.c.id)
        .join(devices, measured.c.hardware_id == devices.c.id)
        .join(environments, measured.c.environment_id == environments.c.id)
        .where(measured.c.source == Source.SWEEP.value, measured.c.choice_policy == STOCK_POLICY)
        .where(sa.not_(measured.c.is_replay), measured.c.superseded_by.is_(None))
        .distinct()
    )
    if not count_flagged:
        query = query.where(measured.c.flags.is_(None))
    if hardware is not None:
        query = query.where(devices.c.key == hardware.key)
    if environment is not None:
        query = query.where(environments.c.key == environment.key)
    with Store.open(url) as store, store.engine.connect() as connection:
        rows = connection.execute(query)
        return {DoneKey.of_keys(bytes(p), bytes(h), bytes(e), space, seed) for p, h, e, space, seed in rows}


def _in_segment(path: Path, *, count_flagged: bool) -> set[DoneKey]:
    done = set()
    unread = 0
    with spool_errors(path, "read the segment"):
        try:
            for frame in read_segment(path):
                try:
                    head = decode_head(frame.record_bytes())
                except (SegmentError, CodecError):
                    unread += 1
                    continue
                if head.source is Source.SWEEP and _counts(head, count_flagged=count_flagged):
                    done.add(_key_of(head))
        except FileNotFoundError:  # sealed or ingested since it was listed
            return done
        except SegmentError as error:
            log.warning("%s: %s; what it holds is measured again", path, error)
    if unread:
        log.warning("%s: %s cannot be read; measured again", path, counted(unread, "record"))
    return done


def _in_file(path: Path, context: ImportContext, sample_seed: int | None, *, count_flagged: bool) -> set[DoneKey]:
    done = set()
    for measurement in measurements_in_file(path, context):
        if measurement.source in (Source.SWEEP, Source.IMPORT) and _counts(measurement, count_flagged=count_flagged):
            key = _key_of(measurement)
            if measurement.sample_seed is None and key.search_space.startswith(_SAMPLE):
                key = key._replace(sample_seed=sample_seed)
            done.add(key)
    return done


def _counts(said: RecordHead | Measurement, *, count_flagged: bool) -> bool:
    is_stock = said.choice_policy == STOCK_POLICY
    return is_stock and not said.is_replay and said.superseded_by is None and (count_flagged or not said.flags)


def _key_of(said: RecordHead | Measurement) -> DoneKey:
    return DoneKey.of(said.problem, said.hardware, said.environment, said.search_space, said.sample_seed)
