r"""Options, output and errors that all commands share.

A command's function parses nothing itself, raises ``DiodeError`` when it fails, and prints with ``print_rows`` or
``print_json``. Its docstring ends with an example, after a blank line. An example of several lines starts with ``\b``,
which keeps the lines apart. Its module makes ``app = make_app(__doc__)``. A console script's ``main`` is ``run(app)``,
which adds ``--version`` and shell completion. ``run`` also turns errors into exit codes: 0 done, 1 failed with one
line, 2 bad usage, 130 interrupted by Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from diode_store.command_line.option_values import guard
from diode_store.command_line.render import cell_text, fitting_columns, json_value, plain_table, printable
from diode_store.command_line.stopping import sigterm_as_ctrl_c
from diode_store.errors import CORRUPT, DatabaseError, DiodeError, first_line, mark_damaged
from diode_store.system.files import unusable_path
from diode_store.system.settings import default_database_url
from diode_store.system.urls import refuse_password_on_command_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

INTERRUPTED = 130
_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
_PROGRESS_AFTER_S = 1.0
_LINE_EVERY_S = 30.0
_TO_SEE_ALL = "widen the terminal, or send it to a file"


def is_on_command_line(context: typer.Context, parameter: str) -> bool:
    """Return whether a person typed a parameter's value, rather than the environment or the default giving it."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def check_database_url(context: typer.Context, parameter: typer.CallbackParam, value: str | None) -> str | None:
    """Return the value of an option that names a warehouse; a password on the command line is bad usage."""
    if value is not None and is_on_command_line(context, parameter.name or ""):
        try:
            refuse_password_on_command_line(value)
        except DatabaseError as error:
            raise typer.BadParameter(str(error)) from error
    return value


def _database_option(
    *names: str, text: str = "The warehouse: a URL, or the path of an SQLite file.", **default: Any
) -> Any:
    return typer.Option(
        "--database",
        *names,
        metavar="URL",
        envvar="DIODE_DATABASE_URL",
        help=text,
        show_default="SQLite in your data folder",
        callback=check_database_url,
        **default,
    )


DatabaseOption = Annotated[str, _database_option(default_factory=default_database_url)]
"""``--database``, else ``DIODE_DATABASE_URL``, else the user's own warehouse; give it no default in the signature."""

SourceOption = Annotated[
    str,
    _database_option(
        "--from",
        default_factory=default_database_url,
        text="The warehouse: a URL, or the path of an SQLite file. Or a published table, such as s3://fleet/timings.",
    ),
]
"""``DatabaseOption`` for a command that only reads; give it no default in the signature."""

NamedDatabaseOption = Annotated[str | None, _database_option()]
"""``--database``, else ``DIODE_DATABASE_URL``, for a command that finds the user's own warehouse itself; give it the
default ``None``."""

HardwareOption = Annotated[
    str | None,
    typer.Option(
        "--hardware",
        metavar="NAME",
        help="The device: an alias, its name, or the first words of its name.",
        show_default="the only one measured",
    ),
]
"""``--hardware`` for one device; give it the default ``None``."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
"""``--json``; give it the default ``False``."""


def make_app(doc: str | None, **options: Any) -> typer.Typer:
    """Return a Typer application with the settings that all commands share.

    Args:
        doc: the module's docstring; its first line is the help text.
        options: further arguments of ``typer.Typer``.
    """
    settings: dict[str, Any] = {
        "help": (doc or "").strip().partition("\n")[0],
        "no_args_is_help": True,
        "add_completion": False,
        "pretty_exceptions_enable": False,
        # Plain help: importing rich takes as long as everything else together.
        "rich_markup_mode": None,
        "context_settings": {"help_option_names": ["-h", "--help"]},
    }
    return typer.Typer(**{**settings, **options})


def command_of(app: typer.Typer, *, completion: bool = False) -> Any:
    """Return an application as a command; it and each of its own commands takes ``--version``, and checks its options.

    Args:
        app: the application.
        completion: also add ``--install-completion`` and ``--show-completion``; for what has a name in the shell.
    """
    command = typer.main.get_command(app)
    version, *shell = typer.main.get_command(_of_every_program).params
    for each in _with_its_commands(command):
        each.params.append(version)
        guard(each)
    if completion:
        command.params += shell
    return command


def _with_its_commands(command: Any) -> Iterator[Any]:
    yield command
    for own in getattr(command, "commands", {}).values():
        yield from _with_its_commands(own)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - the signature Typer calls
    if wanted:
        from importlib.metadata import version

        typer.echo(f"torch-diode {version('torch-diode')}")
        raise typer.Exit


_of_every_program = typer.Typer(add_completion=True)
"""Declare the common parameters: Typer makes options from a function's signature only."""


@_of_every_program.command()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            expose_value=False,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    pass


def run(app: typer.Typer, args: Sequence[str] | None = None, *, name: str | None = None) -> NoReturn:
    """Run ``app`` as a console script and exit with its status.

    Args:
        app: app to run.
        args: its arguments; ``sys.argv[1:]`` unless given.
        name: the command's name in its help; from ``sys.argv[0]`` unless given.
    """
    status: int | str | None = 0
    with handle_errors(), sigterm_as_ctrl_c():
        try:
            command_of(app, completion=True)(args=None if args is None else list(args), prog_name=name)
        except SystemExit as done:
            status = done.code
        # A closed pipe must show here, where it is handled, and not while Python shuts down.
        if sys.stdout is not None:
            sys.stdout.flush()
    sys.exit(status)


@contextlib.contextmanager
def handle_errors() -> Iterator[None]:
    """Turn an error into one line on stderr and an exit status; also works as a decorator.

    Raises:
        SystemExit: 1 after a ``DiodeError``, for an unusable path, or if stdout cannot be written. 2 for an argument
            that is not text. 130 when interrupted.
    """
    try:
        yield
    except DiodeError as error:
        print_error(str(error))
        sys.exit(1)
    except BrokenPipeError:
        _close_stdout_quietly()
        sys.exit(1)
    except UnicodeEncodeError as error:
        # Python replaces each byte of an argument that is not text by a surrogate.
        if "\udc80" <= error.object[error.start] <= "\udcff":
            print_error(f"{error.object!a} is not UTF-8 text; set the terminal to UTF-8")
            sys.exit(2)
        raise
    except OSError as error:
        _print_error_of(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        _end_for_duckdb(error)
        raise


def _end_for_duckdb(error: Exception) -> None:
    """End the command if the error is one that DuckDB raises by itself."""
    if str(error) == "Query interrupted":  # for a Ctrl-C that it noticed itself
        sys.exit(INTERRUPTED)
    if CORRUPT in str(error):  # in a command without a process for its query
        mark_damaged(f"the cache is damaged: {first_line(error)}")
        print_error("the cache is damaged; run `diode cache rebuild`")
        sys.exit(1)


def _print_error_of(error: OSError) -> None:
    """Print an error about a path or stdout; raise any other error, which is our bug."""
    message = unusable_path(error)
    # An error while writing to an open file names no file.
    if message is None and (error.filename is not None or error.errno not in _CANNOT_WRITE):
        raise error
    if message is None:
        _close_stdout_quietly()
        message = f"the output cannot be written: {error.strerror}; make room, or send it elsewhere"
    with contextlib.suppress(OSError):
        print_error(message)


def _close_stdout_quietly() -> None:
    """Point stdout at /dev/null, so that Python's last flush does not fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(message: str) -> None:
    """Print ``error: message`` on one line of stderr."""
    typer.echo(f"error: {printable(' '.join(message.split()))}", err=True)


def print_note(message: str) -> None:
    """Print a note on stderr, such as the matched device, so that stdout holds only the output."""
    typer.echo(cell_text(message), err=True)


def print_json(value: object) -> None:
    """Print ``value`` as indented JSON; bytes as hex, times as ISO 8601, NaN and infinity as null."""
    text = json.dumps(json_value(value), indent=2, ensure_ascii=False, allow_nan=False)
    # A file's name may not be text; Python then has surrogates in it, which JSON can only escape.
    typer.echo(text.encode(errors="backslashreplace").decode())


def print_rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    as_json: bool = False,
    title: str | None = None,
) -> None:
    """Print a table: JSON objects or aligned text, on a terminal as many columns as fit.

    Args:
        columns: the columns' names, the most important first: on a narrow terminal the last ones are left out.
        rows: one sequence per row, as long as ``columns``.
        as_json: print a list of objects, one per row.
        title: the line above the table on a terminal.
    """
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif sys.stdout.isatty():
        _print_on_terminal(columns, rows, title)
    else:
        typer.echo(plain_table(columns, rows))


def print_pairs(pairs: Mapping[str, object], *, as_json: bool = False) -> None:
    """Print names and values: a JSON object, or one aligned line each."""
    if as_json:
        print_json(pairs)
        return
    width = max((len(name) for name in pairs), default=0)
    for name, value in pairs.items():
        typer.echo(f"{name:<{width}}  {cell_text(value)}")


def _print_on_terminal(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None) -> None:
    """Print the columns that fit the terminal, from the left, and name the others; a cell is never broken."""
    shown = fitting_columns(columns, rows, shutil.get_terminal_size().columns)
    if title:
        typer.echo(cell_text(title))
    typer.echo(plain_table(columns[:shown], [row[:shown] for row in rows]))
    if shown < len(columns):
        typer.echo(f"not shown: {', '.join(name.strip() for name in columns[shown:])}; {_TO_SEE_ALL}")


@contextlib.contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Show progress on stderr: a bar on a terminal after a second, elsewhere a line every 30 seconds.

    Args:
        description: the text beside the bar.
        total: the amount of work; None if it is not known.

    Yields:
        A function to call with the amount of work just done.
    """
    if not sys.stderr.isatty():
        with _progress_lines(description, total) as told:
            yield told
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(description, total=total)
    starting = threading.Timer(_PROGRESS_AFTER_S, bar.start)
    starting.daemon = True
    starting.start()
    try:
        yield lambda amount: bar.advance(task, amount)
    finally:
        starting.cancel()
        starting.join()  # else a bar that is about to start would stay
        bar.stop()


@contextlib.contextmanager
def _progress_lines(description: str, total: float | None) -> Iterator[Callable[[float], None]]:
    """Print the time that passed, and the amount of work done, every 30 seconds."""
    amounts: list[float] = []  # appending is safe from any thread
    has_ended = threading.Event()
    started = time.monotonic()

    def tell() -> None:
        while not has_ended.wait(_LINE_EVERY_S):
            of_all = "" if total is None else f" of {total:,.0f}"
            done = f"{sum(amounts):,.0f}{of_all}, " if amounts else ""
            with contextlib.suppress(OSError, ValueError):  # stderr is closed
                print_note(f"{description}: {done}{time.monotonic() - started:.0f} s")

    telling = threading.Thread(target=tell, name="progress", daemon=True)
    telling.start()
    try:
        yield amounts.append
    finally:
        has_ended.set()
        telling.join()  # else a line could follow what the command prints next
