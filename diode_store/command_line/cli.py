"""The `diode` command, which finds its sub-commands through entry points.

Every component, and any other distribution, adds sub-commands in the entry-point group ``diode.commands``::

    [project.entry-points."diode.commands"]
    query = "diode_store.commands.query:app"

The entry's object must be a ``typer.Typer``; make one with ``diode_store.command_line.console.make_app``. An app with
one command and no callback *is* that command: ``diode query "SELECT 1"``. Any other is a group: ``diode db upgrade``.
A module is imported only when its command is run. For ``diode --help`` the first line of its docstring is read from
its file. An entry that cannot be loaded fails only when it is called.
"""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from diode_store.command_line.console import command_of, make_app, run
from diode_store.errors import DiodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP = "diode.commands"
# The opening of a module: comments and blank lines, then the first line of a docstring.
_FIRST_DOC_LINE = re.compile(r'(?:#.*\n|\s)*[rR]?("""|\'\'\')\s*(.+?)\s*(?:\1|\n|$)')
_ENOUGH_OF_A_MODULE = 2000


class EntryPointGroup(TyperGroup):
    """A group whose commands are stand-ins until a person calls one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._entries = command_entries()
        for name, entry in self._entries.items():
            self.commands[name] = TyperCommand(name, short_help=help_line(entry.module))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the real command in place of its stand-in."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(self._entries[name]) if name in self._entries else command, rest


def command_entries() -> dict[str, EntryPoint]:
    """Return the entry points of ``GROUP`` by command name, sorted; of two with the same name ours wins."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        if entry.name not in found or entry.module.startswith("diode_"):
            found[entry.name] = entry
    return dict(sorted(found.items()))


def help_line(module: str) -> str:
    """Return the first line of a module's docstring, without importing it; empty if it cannot be found."""
    try:
        with _source_file(module).open(encoding="utf-8") as text:
            doc = _FIRST_DOC_LINE.match(text.read(_ENOUGH_OF_A_MODULE))
    except (ImportError, OSError, ValueError):
        return ""
    return doc.group(2) if doc else ""


def _source_file(module: str) -> Path:
    """Return the path of a module's source; finding a top-level package does not import it."""
    package, *rest = module.split(".")
    spec = find_spec(package)
    if spec is None or not spec.origin:
        raise ModuleNotFoundError(module)
    if not rest:
        return Path(spec.origin)
    path = Path(spec.origin).parent.joinpath(*rest)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def load_command(entry: EntryPoint) -> Any:
    """Import an entry point's module and return its command.

    Raises:
        DiodeError: the module cannot be imported, or the entry point is not a Typer application.
    """
    try:
        app = entry.load()
    except Exception as error:  # another distribution's module may fail in any way
        raise DiodeError(_cannot_load(entry, f"{type(error).__name__}: {error}")) from error
    if not isinstance(app, typer.Typer):
        raise DiodeError(_cannot_load(entry, f"{entry.value} is not a typer.Typer"))
    command = command_of(app)
    command.name = entry.name
    return command


def _cannot_load(entry: EntryPoint, reason: str) -> str:
    package = entry.dist.name if entry.dist else entry.module.partition(".")[0]
    return f"the command {entry.name!r} cannot be loaded: {reason}; reinstall or remove {package}"


app = make_app(
    "Keep kernel timings, learn from them, and pick kernels without benchmarking.",
    cls=EntryPointGroup,
    epilog="Example: diode db upgrade && diode db stats",
)


@app.callback()
def _root() -> None:
    pass


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run ``diode`` and exit with its status."""
    run(app, args, name="diode")
