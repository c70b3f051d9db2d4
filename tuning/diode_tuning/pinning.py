"""Use of the timings of attention and convolutions: a picks file that the hook finds, and models of these ops."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from diode_store.command_line.console import print_note
from diode_store.command_line.render import counted
from diode_store.errors import PicksError
from diode_trainer import catalogue
from diode_trainer.data.dataset import LEARNED_ALONE
from diode_trainer.feature_kinds import kind_of
from diode_trainer.jobs.naming import model_name, output_path
from diode_tuning import installing
from diode_tuning.plan import made
from diode_tuning.pool import FEWEST_PROBLEMS, folds_for
from diode_tuning.running import CommandFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from diode_collectors.sweep.devices import SweepDevice
    from diode_store.exchange.picks import Pick
    from diode_store.records import Environment, Hardware
    from diode_store.warehouse.store import Store
    from diode_tuning.pool import Pool
    from diode_tuning.running import Commands, Output


def write_picks(url: str, device: SweepDevice, ops: Iterable[str]) -> dict[str, Any] | None:
    """Add the fastest kernels of some ops that were measured on a device, in its software, to the hook's file.

    Returns:
        ``file`` and the number of added ``picks``; None if nothing was measured.

    Raises:
        SchemaError: the warehouse has another revision.
        DatabaseError: the warehouse cannot be read.
        DiodeError: the file cannot be written.
    """
    from diode_store.exchange.picks import Picks
    from diode_store.exchange.picks_reading import read_picks
    from diode_store.warehouse.store import Store

    with Store.open(url) as store:
        found = list(_picks(store, url, device, ops))
    if not found:
        return None
    path = catalogue.user_picks(device.hardware.name)
    before = Picks.of(device.hardware, [])
    with contextlib.suppress(PicksError):  # there is none yet, or it is damaged
        there = read_picks(path)
        before = there if there.device.key == device.hardware.key else before
    with made(path):
        before.updated(found).write(path, force=True)
    return {"file": str(path), "picks": len(found)}


def _picks(store: Store, url: str, device: SweepDevice, ops: Iterable[str]) -> Iterator[Pick]:
    from diode_store.commands.query import connected
    from diode_store.exchange.picks import Pick
    from diode_store.query.ranked_ties import ranked

    ids = _ids(store, device.hardware, device.environment)
    if ids is None:
        return
    connection = connected(url, "fastest_configs", "config_rank")
    for op in ops:
        for item in ranked(connection, *ids, op, None):
            yield Pick(item.problem, item.configs, device.environment, item.runtime_us, item.regime)


def _ids(store: Store, hardware: Hardware, environment: Environment) -> tuple[int, int] | None:
    """Return the warehouse's ids of a device and of its software; None if nothing was measured there."""
    import sqlalchemy as sa

    from diode_store.warehouse import schema

    tables = (schema.hardware, hardware.key), (schema.environments, environment.key)
    with store.engine.connect() as connection:
        device, software = (connection.scalar(sa.select(each.c.id).where(each.c.key == key)) for each, key in tables)
    return None if device is None or software is None else (device, software)


def ops_to_learn(pool: Pool, hardware: Hardware, problems: Mapping[str, int]) -> list[str]:
    """Return the ops that get a model of their own, given the number of measured problems of each op.

    An op gets none if a shipped model knows the device, or if there are too few problems.
    """
    asked = {problem.op for problem in pool.pinned.values()}
    wanted = [op for op in LEARNED_ALONE if op in asked and not _is_known(op, hardware)]
    return [op for op in wanted if problems.get(op, 0) >= FEWEST_PROBLEMS]


def train_alone(commands: Commands, pool: Pool, folds: int, output: Output, previous: Path) -> list[str]:
    """Train a model for each op that gets one of its own (``ops_to_learn``), and return the models' paths.

    A model that was there before is copied to the folder ``previous``.
    """
    found = []
    hardware = pool.devices[0].hardware
    problems = {op: len(pool.measured(ops=(op,))) for op in LEARNED_ALONE}
    for op in ops_to_learn(pool, hardware, problems):
        print_note(f"{op}: learning from {counted(problems[op], 'problem')}")
        path = _model_of(op, hardware)
        if path.exists():
            print_note(f"{op}: {installing.keep_copy(path, previous)} is the model before")
        options = "--folds", str(folds_for(problems[op], folds)), "--output", str(path), "--force", "--restart"
        try:
            commands.run("train", "--op", op, "--hardware", hardware.name, *options, output=output)
        except CommandFailedError:
            print_note(f"{op}: no model could be trained, see above; the picks file has what was measured")
            continue
        found.append(str(path))
    return found


def _model_of(op: str, hardware: Hardware) -> Path:
    return output_path(None, model_name(None, None, [hardware.name], op), op)


def _is_known(op: str, hardware: Hardware) -> bool:
    """Return whether a shipped model knows a device for an op."""
    domains = [model.card.domain for model in catalogue.shipped_models(kind_of({op}).purpose)]
    return any(domain.knows_op(op) and domain.standing(hardware, op).is_known for domain in domains)
