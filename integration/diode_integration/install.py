"""Install a choices handler for the whole process, and uninstall it.

``diode_integration.inductor.process`` explains how a handler reaches every thread.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from diode_integration.inductor.process import engage, missing_capability
from diode_store.errors import DiodeError

if TYPE_CHECKING:
    from types import TracebackType

    from diode_integration.choices import DiodeInductorChoices

_lock = threading.RLock()
_installation: Installation | None = None


class Installation:
    """An installed handler; leaving it as a context manager uninstalls it."""

    def __init__(self, choices: DiodeInductorChoices) -> None:
        self.choices = choices
        self._undo = ExitStack()

    def close(self) -> None:
        """Uninstall, unless another installation has replaced this one."""
        with _lock:
            if _installation is self:
                uninstall()

    def __enter__(self) -> DiodeInductorChoices:
        """Return the handler."""
        return self.choices

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Uninstall."""
        self.close()


def install(choices: DiodeInductorChoices) -> Installation:
    """Make ``choices`` the handler of this process, in place of one installed before.

    Running compiles keep their choices so far.

    Args:
        choices: the handler; its ``uuid`` must not change while it is installed.

    Returns:
        The installation, which may serve as a context manager.

    Raises:
        DiodeError: this torch takes no process-wide handler.
    """
    global _installation  # noqa: PLW0603 - this module keeps one handler per process
    problem = missing_capability()
    if problem is not None:
        raise DiodeError(problem)
    with _lock:
        uninstall()
        installation = Installation(choices)
        _installation = installation
        try:
            installation._undo.callback(choices.flush)  # noqa: SLF001 - its own module
            engage(choices, installation._undo)  # noqa: SLF001 - as above
        except BaseException:
            uninstall()
            raise
        return installation


def uninstall() -> None:
    """Restore the state before the install, in this thread and for new ones; harmless without an installed handler."""
    global _installation
    with _lock:
        gone, _installation = _installation, None
        if gone is not None:
            gone._undo.close()  # noqa: SLF001 - its own module


def installed() -> DiodeInductorChoices | None:
    """Return the installed handler, or None."""
    installation = _installation  # once: another thread may uninstall meanwhile
    return installation.choices if installation else None
