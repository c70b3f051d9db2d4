"""Run a function after Inductor's import, without importing Inductor, which takes longer than torch itself."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

from diode_store.values import safely

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

log = logging.getLogger("diode_integration")

ENTRANCES = ("torch._inductor.compile_fx", "torch._inductor.choices")
"""Modules to wait for: every compile imports the first before it computes a cache key, a choices handler the second."""


def once_inductor_is_there(action: Callable[[], bool], undo: ExitStack) -> None:
    """Call ``action`` now, and again after Inductor's import, until it returns True or ``undo`` is closed."""
    if not action():
        waiting = AfterInductor(action)
        waiting.start()
        undo.callback(waiting.cancel)


def put_in_place(entries: dict[Any, Any], name: Any, ours: Any, undo: ExitStack) -> None:
    """Replace an entry of a table, or of a module's ``vars``, until ``undo`` is closed.

    A later replacement by somebody else stays, and keeps ``ours`` alive if it calls ``ours``.
    """
    stock = entries[name]

    def put_back() -> None:
        if entries.get(name) is ours:
            entries[name] = stock

    undo.callback(put_back)
    entries[name] = ours


class AfterInductor(MetaPathFinder):
    """Calls a function after the import of one of ``ENTRANCES``, in the importing thread, until the function is done.

    Other threads that import the same module wait. No other thread waits, so that two cannot wait for each other.
    """

    def __init__(self, action: Callable[[], bool]) -> None:
        """Keep ``action``, which returns whether it is done; its exceptions are logged."""
        self._action = action
        self._running = threading.Lock()

    @property
    def waiting(self) -> bool:
        """True until the function is done or canceled."""
        return self in sys.meta_path

    def start(self) -> None:
        """Wait for Inductor."""
        sys.meta_path.insert(0, self)

    def cancel(self) -> None:
        """Stop waiting; harmless otherwise."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find an entrance as the later finders do, and have its loader call the function afterwards."""
        if fullname not in ENTRANCES:
            return None
        # Only the later finders: two waiting finders would ask each other without end.
        behind = list(itertools.dropwhile(lambda finder: finder is not self, sys.meta_path))[1:]
        found = (finder.find_spec(fullname, path, target) for finder in behind if hasattr(finder, "find_spec"))
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._call_after(spec.loader)
        return spec

    def _call_after(self, loader: Loader) -> None:
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            self._act()

        loader.exec_module = execute_and_act  # type: ignore[method-assign]  # a loader serves one module

    def _act(self) -> None:
        if self._running.acquire(blocking=False):  # else an import of the other entrance does it
            try:
                if self.waiting and self._action():
                    self.cancel()
            except Exception as error:  # noqa: BLE001 - the import, most likely of a compile, must go on
                safely.log(log, logging.WARNING, f"what waited for Inductor failed: {safely.in_words(error)}", error)
            finally:
                self._running.release()
