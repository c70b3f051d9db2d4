"""Write the pages of reference that the code knows, into ``docs/reference``: commands, settings and views.

``make docs`` runs this before it builds the site. The pages are not committed.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
import tempfile
import textwrap
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.main import get_command

from diode_collectors.ingest.settings import SETTINGS
from diode_integration.settings import VARIABLES, HookSettings
from diode_store.query import analytics
from diode_store.views.view_columns import view_text
from diode_store.views.view_files import VIEWS
from diode_store.warehouse import migrate
from diode_store.warehouse.database import make_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
_SETTINGS = """\
Settings of `diode-ingest`. Options override the environment, and the environment overrides the TOML file.
[Running the daemon](../running.md#settings) says where the file is.
[Options of the hook](#options-of-the-hook) are below."""
_HOOK = """\
Keyword options of `torch_diode.install()` and `install_diode_choices()`. A variable stands in for an option that
code does not give.
[Settings of the hook](../hook-settings.md) explains how they work together."""
_NO_OPTIONS = {"from_environment"}
_VIEWS = """\
Every column of every view. [Query the warehouse](../views.md) says how to ask, and which timings the views leave out.
Times in `*_us` columns are microseconds. A parameter that a template does not have is NULL."""


def commands_page() -> str:
    """Return the page of all commands, from their Typer declarations."""
    parts = ["# Commands", "Each command has `--help`. Options of `diode NAME` and of `diode-NAME` are the same."]
    for point in sorted(entry_points(group="diode.commands"), key=lambda point: point.name):
        parts += _command(f"diode {point.name}", get_command(point.load()), "##")
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Any, heading: str) -> Iterator[str]:
    yield f"{heading} `{name}`"
    yield _prose(command.help or "")
    rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if rows:
        yield "\n".join(("| argument or option | meaning |", "|---|---|", *rows))
    for child, sub in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {child}", sub, heading + "#")


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = f"`{(parameter.name or '').upper()}`"
    else:
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        names += f" {_cell(parameter.metavar)}" if parameter.metavar else ""
    text = _cell(getattr(parameter, "help", None) or "")
    if isinstance(parameter.default, int | float | str) and not isinstance(parameter.default, bool):
        text += f" Default: `{parameter.default}`."
    if parameter.envvar:
        text += f" Variable: `{parameter.envvar}`."
    return f"| {names} | {text} |"


def _prose(text: str) -> str:
    """Return a command's help as Markdown, its example as a block of shell."""
    paragraphs = text.replace("\b\n", "").strip().split("\n\n")
    return "\n\n".join(_example(part) if part.startswith("Example") else _escaped(part) for part in paragraphs)


def _example(text: str) -> str:
    lines = re.sub(r"^Examples?:\s*", "", text).splitlines()
    return "\n".join(("```sh", *(line.strip() for line in lines), "```"))


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Return help text as Markdown that shows it letter by letter, with code left as code."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else re.sub(r"([<>*_\[\]])", r"\\\1", piece) for piece in pieces)


def settings_page() -> str:
    """Return the page of the daemon's settings, and of every variable that a command reads."""
    rows = [
        f"| `{each.name}` | `{each.option}` | `{each.variable}` | {each.default} | {each.text} |"
        for each in SETTINGS.values()
    ]
    return (
        "\n\n".join(
            (
                "# Settings",
                _SETTINGS,
                "\n".join(("| key | option | environment | default | meaning |", "|---|---|---|---|---|", *rows)),
                "## Options of the hook",
                _HOOK,
                "\n".join(("| option | variable | meaning |", "|---|---|---|", *_hook_rows())),
                "## Where data is kept",
                _places(),
            )
        )
        + "\n"
    )


def _hook_rows() -> Iterator[str]:
    """Yield a row for each field of the hook's settings, with the string below the field as its text."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(HookSettings)))
    [body] = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            name = field.target.id
            if name not in _NO_OPTIONS and isinstance(text.value, ast.Constant):
                variable = f"`{VARIABLES[name]}`" if name in VARIABLES else ""
                yield f"| `{name}` | {variable} | {_cell(str(text.value.value))} |"


def _places() -> str:
    rows = (
        ("`--database`", "`DIODE_DATABASE_URL`", "the warehouse: a URL, or the path of an SQLite file"),
        ("`--spool`", "`DIODE_SPOOL`", "the spool, a folder"),
        ("", "`DIODE_CACHE`", "the folder of the cache; beside the database if unset"),
        ("`--config`", "`DIODE_CONFIG`", "the settings file of the daemon; commands take the warehouse from it"),
    )
    lines = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join(("| option | environment | meaning |", "|---|---|---|", *lines))


def views_page() -> str:
    """Return the page of the views, with the columns and types that DuckDB has for them."""
    parts = [
        "# Views",
        _VIEWS,
        "\n".join(("| view | one row |", "|---|---|", *_view_rows())),
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "warehouse.db")
        engine = make_engine(path)
        migrate.upgrade(engine)
        engine.dispose()
        with closing(analytics.connect(path)) as connection:
            for view in VIEWS:
                columns = connection.execute(f"DESCRIBE {view}").fetchall()
                parts += _view(view, [(name, kind) for name, kind, *_ in columns])
    return "\n\n".join(parts) + "\n"


def _view_rows() -> Iterator[str]:
    for view in VIEWS:
        yield f"| [`{view}`](#{view}) | {view_text(view).row} |"


def _view(view: str, columns: list[tuple[str, str]]) -> Iterator[str]:
    text = view_text(view)
    yield f"## `{view}`"
    yield f"One row is {text.row}.\n\n{text.about}"
    rows = [f"| `{name}` | {kind.lower()} | {text.column(name)} |" for name, kind in columns]
    yield "\n".join(("| column | type | meaning |", "|---|---|---|", *rows))


PAGES = {"commands.md": commands_page, "settings.md": settings_page, "views.md": views_page}


def main(folder: Path = FOLDER) -> None:
    """Write every page, and say how many."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {len(PAGES)} pages to {folder}\n")


if __name__ == "__main__":
    main()
