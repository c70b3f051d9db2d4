"""Create, upgrade, prune, copy and inspect the warehouse."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diode_store.command_line.console import DatabaseOption, JsonOption, make_app, print_json, print_note, print_pairs
from diode_store.command_line.render import counted
from diode_store.commands import db_upkeep
from diode_store.errors import FIRST_STEP, DatabaseError, SchemaError
from diode_store.system.urls import sqlite_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

app = make_app(__doc__)


@contextmanager
def _engine(url: str) -> Iterator[Engine]:
    from diode_store.warehouse.database import make_engine

    engine = make_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


@app.command()
def upgrade(database: DatabaseOption, *, as_json: JsonOption = False) -> None:
    """Upgrade the warehouse to the newest schema, or create it. Safe to run again.

    Example: diode db upgrade --database warehouse.db
    """
    from diode_store.command_line.diagnosis import on_a_network
    from diode_store.warehouse import migrate
    from diode_store.warehouse.database import describe

    for finding in on_a_network(sqlite_path(database)):
        print_note(f"warning: {finding}")
    with _engine(database) as engine:
        done = migrate.upgrade(engine)
        where = describe(engine)
    if as_json:
        print_json({"database": where, "before": done.before, "after": done.after})
    elif done.before == done.after:
        typer.echo(f"{where} has revision {done.after} already")
    else:
        typer.echo(f"{where}: {done.before or 'nothing'} -> revision {done.after}")
    if done.before is None:
        print_note(f"the warehouse holds no measurements yet; {FIRST_STEP}")


@app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="The older schema revision, such as 0001.")],
    database: DatabaseOption,
    *,
    yes: db_upkeep.YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Downgrade the warehouse for an older torch-diode; without --yes only show what would be lost.

    Example: diode db downgrade 0001
    """
    from diode_store.warehouse import migrate
    from diode_store.warehouse.database import describe

    with _engine(database) as engine:
        lost = migrate.losses(engine, revision)
        where, before = describe(engine), migrate.current(engine)
        if yes:
            migrate.downgrade(engine, revision)
    if as_json:
        print_json({"database": where, "dry_run": not yes, "before": before, "after": revision, "loses": lost})
    elif yes:
        typer.echo(f"{where}: revision {before} -> {revision}")
    else:
        typer.echo(
            f"would bring {where} from revision {before} back to {revision}, and lose{'' if lost else ' nothing'}"
        )
        for loss in lost:
            typer.echo(f"  {loss.table} ({loss.rows:,} rows): {loss.what}")
        typer.echo("make a copy with `diode db backup` and do it with --yes")


app.command()(db_upkeep.prune)
app.command()(db_upkeep.supersede)
app.command()(db_upkeep.tombstones)
app.command()(db_upkeep.vacuum)
app.command()(db_upkeep.backup)


@app.command()
def current(database: DatabaseOption, *, as_json: JsonOption = False) -> None:
    """Show the warehouse's schema revision and the newest one.

    Example: diode db current
    """
    from diode_store.warehouse import migrate
    from diode_store.warehouse.database import describe
    from diode_store.warehouse.schema import HEAD_REVISION

    with _engine(database) as engine:
        print_pairs(
            {"database": describe(engine), "revision": migrate.current(engine), "newest": HEAD_REVISION},
            as_json=as_json,
        )


@app.command()
def check(database: DatabaseOption, *, as_json: JsonOption = False) -> None:
    """Check the whole warehouse for damage: revision, tables, references and the file itself.

    Example: diode db check
    """
    from diode_store.warehouse import migrate
    from diode_store.warehouse.database import describe, integrity_problems
    from diode_store.warehouse.soundness import broken_facts

    with _engine(database) as engine:
        migrate.require_current(engine)
        differences = migrate.differences(engine)
        damage = integrity_problems(engine) or broken_facts(engine)
        where = describe(engine)
    wrong = [] if damage or differences else _wrong_values(database)
    if as_json:
        print_json({"database": where, "differences": differences, "damage": damage, "wrong_values": wrong})
    if damage:
        raise DatabaseError(f"{where} is damaged ({damage[0]}); restore it from a backup")
    if differences:
        raise SchemaError(f"{where} was changed by hand ({differences[0]}); restore it from a backup")
    if wrong:
        others = f" and {counted(len(wrong) - 1, 'other row')}" if len(wrong) > 1 else ""
        raise DatabaseError(
            f"{where}: {wrong[0]}{others}, left out of queries; correct or delete it, then run `diode sync --rebuild`"
        )
    if not as_json:
        typer.echo(f"{where} is sound")


def _wrong_values(database: str) -> list[str]:
    """Return a line for each row of an SQLite file with a value of the wrong type; a server checks types itself."""
    from diode_store.cache.opening import open_source
    from diode_store.cache.source import wrong_values

    if sqlite_path(database) is None:
        return []
    with open_source(database) as source:
        return wrong_values(source)


@app.command()
def stats(database: DatabaseOption, *, as_json: JsonOption = False) -> None:
    """Show the number of rows in the warehouse.

    Example: diode db stats --json
    """
    from diode_store.warehouse.database import describe, size_bytes
    from diode_store.warehouse.schema import HEAD_REVISION
    from diode_store.warehouse.store import Store

    with Store.open(database) as store:
        counts: dict[str, Any] = {
            "database": describe(store.engine),
            "revision": HEAD_REVISION,
            "bytes": size_bytes(store.engine),
            **store.counts(),
        }
    print_pairs(counts, as_json=as_json)


@app.command(hidden=True)
def revision(
    message: Annotated[str, typer.Argument(help="Summary of the migration in a few words.")],
) -> None:
    """Write the next migration from the changes in schema.py; for developers, in a checkout.

    Example: diode db revision "add clock rates"
    """
    import tempfile
    from pathlib import Path

    from diode_store.warehouse import migrate

    with tempfile.TemporaryDirectory() as folder, _engine(str(Path(folder) / "head.db")) as engine:
        migrate.upgrade(engine)
        for path in migrate.new_revision(engine, message):
            typer.echo(path)
