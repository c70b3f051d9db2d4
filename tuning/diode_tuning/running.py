"""Run other commands of torch-diode, each in a process that ends with this one."""

from __future__ import annotations

import json
import os
import subprocess
from enum import Enum
from typing import TYPE_CHECKING, Any

from diode_store.errors import DiodeError
from diode_store.processes.programs import run_python
from diode_store.system.settings import DATABASE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MAIN = """
from diode_store.command_line.cli import main
main()
"""


class Output(Enum):
    """Use of a command's stdout."""

    SHOW = "show"
    """Goes to the stdout of this process."""
    JSON = "json"
    """Is read as JSON."""
    DROP = "drop"
    """Is dropped."""


class CommandFailedError(DiodeError):
    """A command failed and has printed why."""


class Commands:
    """Runs commands, one at a time."""

    def __init__(self, database: str | None = None, lock: int | None = None) -> None:
        """Prepare to run commands.

        Args:
            database: URL of their warehouse; None for the usual one.
            lock: descriptor of a lock that lasts as long as a command does.
        """
        # In the environment, because a command line shows a password in the URL to every user.
        self._environment = dict(os.environ) if database is None else {**os.environ, DATABASE_VARIABLE: database}
        self._fds = () if lock is None else (lock,)

    def run(
        self,
        *arguments: str,
        output: Output = Output.SHOW,
        on_tick: Callable[[float], None] = lambda _seconds: None,
        locks: Sequence[int] = (),
    ) -> Any:
        """Run ``diode`` with these arguments until it ends.

        Args:
            arguments: the sub-command and its options.
            output: use of its stdout.
            on_tick: called about once a second with the seconds since the last call.
            locks: descriptors of further locks that last as long as the command.

        Returns:
            The decoded stdout for ``Output.JSON``, else None.

        Raises:
            CommandFailedError: the command failed, and stderr says why.
            KeyboardInterrupt: Ctrl-C or SIGTERM came, and the command has ended.
        """
        stdout = {Output.SHOW: None, Output.JSON: subprocess.PIPE, Output.DROP: subprocess.DEVNULL}[output]
        fds = (*self._fds, *locks)
        status, said = run_python(
            _MAIN, arguments, environment=self._environment, stdout=stdout, fds=fds, on_tick=on_tick
        )
        if status:
            raise CommandFailedError(
                f"`diode {arguments[0]}` failed, see above; mend that, and run the same command again to go on"
            )
        return json.loads(said) if output is Output.JSON else None
