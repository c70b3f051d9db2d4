"""A second try with the vendor's kernels where a graph with a kernel that was picked cannot be compiled.

Of several candidates Inductor leaves out most of those that fail when it benchmarks them. One that is kept alone is
compiled with the graph only, and so is what is fused into any; its failure would be the whole compile's.
"""

from __future__ import annotations

import copy
import functools
import logging
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from diode_integration.deferral import once_inductor_is_there, put_in_place
from diode_integration.listing import is_tuned
from diode_store import safely

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack

    from diode_integration.stats import Decision, Stats

log = logging.getLogger("diode_integration")

_COMPILER = "torch._inductor.compile_fx"
ENTRANCE = "fx_codegen_and_compile"
"""Of that module: compiles one graph, after its caches were asked."""


class Picker(Protocol):
    """The installed handler."""

    graph: Graph


class Taker(Protocol):
    """What records decisions."""

    def take(self, decision: Decision, decided_at: datetime) -> None:
        """Record one."""

    def say_once(self, message: str) -> None:
        """Log a warning, unless one that begins likewise was logged before."""


class _Settled(NamedTuple):
    decision: Decision
    at: datetime


class Graph:
    """What a handler knows of the graph that each thread compiles."""

    def __init__(self, stats: Stats, recorder: Taker | None, *forget: Callable[[], None]) -> None:
        """Count in ``stats``; ``forget`` drops what is remembered of this thread's last graph.

        Decisions go to ``recorder`` once their graph is compiled, or is given up: only then it is known which of them
        stand.
        """
        self._stats = stats
        self._recorder = recorder
        self._forget = forget
        self._thread = threading.local()

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Compile a graph in this thread, perhaps amid another one's compile."""
        outer: list[_Settled] | None = getattr(self._thread, "settled", None)
        outer_has_picked = self.has_picked
        self._thread.has_picked, self._thread.settled = False, []
        for forget in self._forget:
            forget()
        try:
            yield
        except BaseException as error:
            self._failed(safely.in_words(error))
            raise
        finally:
            settled, self._thread.settled = self._thread.settled, outer
            self._thread.has_picked = outer_has_picked
            for each in settled:
                self._hand_over(each)

    def settled(self, decision: Decision) -> None:
        """Take note of a decision; outside a graph's compile it is recorded at once."""
        if decision.keeps_template:
            self.picked()
        each = _Settled(decision, datetime.now(UTC))
        settled: list[_Settled] | None = getattr(self._thread, "settled", None)
        if settled is None:
            self._hand_over(each)
        else:
            settled.append(each)

    def _hand_over(self, each: _Settled) -> None:
        if self._recorder is None:
            return
        try:
            self._recorder.take(*each)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            self._stats.count("decisions_dropped")
            self._recorder.say_once(f"a decision is not recorded: {safely.in_words(error)}")

    def _failed(self, failure: str) -> None:
        """Say of this thread's decisions that there is no graph for them."""
        new = [each.decision for each in self._thread.settled if each.decision.failure is None]
        self._stats.mark_failed(new, failure)
        self._thread.settled = [
            each if each.decision.failure else _Settled(replace(each.decision, failure=failure), each.at)
            for each in self._thread.settled
        ]

    def picked(self) -> None:
        """Remember that a template was kept."""
        self._thread.has_picked = True

    @property
    def has_picked(self) -> bool:
        """Whether a template was kept."""
        return getattr(self._thread, "has_picked", False)

    @property
    def is_without_model(self) -> bool:
        """Whether the vendor's kernels are to be kept, whatever the model or a picks file says."""
        return getattr(self._thread, "is_without_model", False)

    @contextmanager
    def without_model(self, failure: str) -> Iterator[None]:
        """Compile this thread's graph again and keep the vendor's kernels, as it failed with what was picked.

        The decisions of the first try did not stand. Those of the second are forgotten if it fails too.
        """
        first: list[_Settled] = self._thread.settled
        self._thread.is_without_model, self._thread.settled = True, []
        failed = [each._replace(decision=replace(each.decision, failure=failure)) for each in first]
        try:
            yield
        except BaseException:
            self._thread.settled = failed
            raise
        finally:
            self._thread.is_without_model = False
            self._stats.mark_failed([each.decision for each in first], failure)
        self._stats.count("failed_graphs")
        # The second try decided the others anew.
        self._thread.settled[:0] = [each for each in failed if each.decision.keeps_template]


def guard(installed: Callable[[], Picker | None], undo: ExitStack) -> None:
    """Have Inductor compile a graph again, without the model, if it fails with a template that was kept.

    Its compiler may not have been imported yet, which takes long; then that is waited for.
    """
    once_inductor_is_there(lambda: _wrap(installed, undo), undo)


def _wrap(installed: Callable[[], Picker | None], undo: ExitStack) -> bool:
    """Wrap the entrance; return False if the compiler is still to be imported."""
    compile_fx = sys.modules.get(_COMPILER)
    if compile_fx is None:
        return False
    stock = getattr(compile_fx, ENTRANCE, None)
    if stock is None:  # while it is imported, or in a torch that has none, where nothing will be caught
        return not getattr(compile_fx.__spec__, "_initializing", False)

    @functools.wraps(stock)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        picker = installed()
        if picker is None:
            return stock(*args, **kwargs)
        restore = _restorer(args[0] if args else kwargs.get("gm"))
        with picker.graph.compiling():
            try:
                return stock(*args, **kwargs)
            except Exception as error:
                # Somebody's limit of time, such as a signal's, is no fault of a kernel.
                if restore is None or not picker.graph.has_picked or isinstance(error, TimeoutError):
                    raise
                restore()
                return _again(picker, error, functools.partial(stock, *args, **kwargs))

    put_in_place(vars(compile_fx), ENTRANCE, compiled, undo)
    return True


def _restorer(module: Any) -> Callable[[], None] | None:
    """Return what gives a module, and those in it, the graphs that they have now; None if that cannot be done.

    Inductor's passes change a graph in place, at last so that it is no longer functional; run on that again, they
    would drop copies that matter. torch copies a graph's nodes, not what their metadata refers to. One that will not be
    tuned is not copied: nothing is picked for it.
    """
    if not is_tuned():
        return None
    try:
        graphs = [
            (each, copy.deepcopy(each.graph)) for each in module.modules() if isinstance(each, torch.fx.GraphModule)
        ]
    except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
        safely.log(log, logging.DEBUG, f"a graph cannot be copied: {safely.in_words(error)}", error)
        return None

    def restore() -> None:
        for each, graph in graphs:
            each.graph = graph

    return restore


def _again(picker: Picker, error: Exception, compile_graph: Callable[[], Any]) -> Any:
    why = safely.in_words(error)
    failed = False
    try:
        with picker.graph.without_model(why):
            result = compile_graph()
    except Exception:  # noqa: BLE001 - it was not the pick: the user gets what failed first, with its cause
        failed = True
    if failed:
        raise error
    what = "a kernel that was picked cannot be used, so the graph has the vendor's"
    safely.log(log, logging.WARNING, f"{what}: {why}", error)
    return result
