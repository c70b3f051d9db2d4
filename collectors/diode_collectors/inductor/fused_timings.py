"""Hear what Inductor times of each fused kernel: the configs of its heuristics, and coordinate descent's.

Inductor times these kernels when they run for the first time, in the process that runs them. There is no hook, so this
module wraps three methods of ``CachingAutotuner``, whose names are the same in torch 2.10 to 2.15.
"""

from __future__ import annotations

import functools
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from diode_collectors.inductor.fused_source import config_of_triton, read_source
from diode_collectors.inductor.kernel_metrics import told_by
from diode_store.ops import FUSED_OPS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from diode_collectors.inductor.kernel_metrics import Told
    from diode_store.records import KernelConfig, Problem

HEURISTICS, DESCENT = "HEURISTICS", "COORDINATE_DESCENT"
"""Names of the two searches, for ``Measurement.search_space``."""
_TIME = "bench"
_SEARCHES = {"autotune_to_one_config": HEURISTICS, "coordinate_descent_tuning": DESCENT}
"""Method of ``CachingAutotuner`` → search."""
_lock = threading.RLock()
_listeners: list[_Listener] = []
_wrapped = ExitStack()


@dataclass(frozen=True)
class FusedTimings:
    """Times of one search over the configs of a fused kernel."""

    problem: Problem
    device: str
    """Device as torch names it, such as ``cuda:0``."""
    search_space: str
    times_ms: dict[KernelConfig, float]
    """Milliseconds of each config, ``inf`` for a config that failed."""
    told: dict[KernelConfig, Told]
    """Metrics of each config."""
    with_copies: bool = False
    """True if a time includes copying inputs that the kernel writes over."""


@dataclass(eq=False)
class _Listener:
    take: Callable[[FusedTimings], None]
    failed: Callable[[Exception], None]
    heard: WeakKeyDictionary[Any, dict[KernelConfig, tuple[float, Told]]] = field(default_factory=WeakKeyDictionary)
    """Milliseconds and metrics of each config of a kernel, until its search ends."""


class FusedListener:
    """Hands on the times of every fused kernel that Inductor tunes in this process, while it listens."""

    def __init__(self, take: Callable[[FusedTimings], None], failed: Callable[[Exception], None]) -> None:
        """Prepare to call ``take`` with each search, or ``failed`` with its error. Both run in the user's threads."""
        self._listener = _Listener(take, failed)

    def start(self) -> None:
        """Start to listen; do nothing if it listens already."""
        with _lock:
            if self._listener not in _listeners:
                if not _listeners:
                    _wrap()
                _listeners.append(self._listener)

    def stop(self) -> None:
        """Stop listening; harmless otherwise."""
        with _lock:
            if self._listener in _listeners:
                _listeners.remove(self._listener)
                if not _listeners:
                    _wrapped.close()


def _wrap() -> None:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    methods = {_TIME: _timed, **dict.fromkeys(_SEARCHES, _searched)}
    for name, wrapper in methods.items():
        stock = vars(CachingAutotuner).get(name)
        if stock is not None:
            replace_method(CachingAutotuner, name, wrapper(name, stock), _wrapped)


def replace_method(owner: type, name: str, ours: Any, undo: ExitStack) -> None:
    """Replace a class's own method until ``undo`` is closed; a later replacement by somebody else stays."""
    stock = vars(owner)[name]

    def put_back() -> None:
        if vars(owner).get(name) is ours:
            setattr(owner, name, stock)

    undo.callback(put_back)
    setattr(owner, name, ours)


def _timed(_name: str, stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def bench(self: Any, launcher: Any, *args: Any, **kwargs: Any) -> Any:
        milliseconds = stock(self, launcher, *args, **kwargs)
        for listener in tuple(_listeners):
            try:
                if (op := _op_of(self)) is not None:
                    heard = listener.heard.setdefault(self, {})
                    heard[config_of_triton(op, launcher.config)] = (float(milliseconds), told_by(launcher))
            except Exception as error:  # noqa: BLE001 - the user's program must go on, whatever happened here
                listener.failed(error)
        return milliseconds

    return bench


def _searched(name: str, stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def search(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = stock(self, *args, **kwargs)
        for listener in tuple(_listeners):
            try:
                heard = listener.heard.pop(self, None)
                timings = _timings(self, _SEARCHES[name], heard) if heard else None
                if timings is not None:
                    listener.take(timings)
            except Exception as error:  # noqa: BLE001 - as above
                listener.failed(error)
        return found

    return search


def _op_of(tuner: Any) -> str | None:
    """Return the op of a kernel; None for a template, a user's kernel or a combination."""
    name = str(getattr(tuner.heuristic_type, "name", "")).lower()
    return name if name in FUSED_OPS else None


def _timings(tuner: Any, search_space: str, heard: Mapping[KernelConfig, tuple[float, Told]]) -> FusedTimings | None:
    """Return the times of a kernel; None for one that no config describes, such as a cooperative reduction."""
    source = read_source(Path(tuner.filename).read_text(encoding="utf-8"))
    if source is None or source.is_left_to_stock:
        return None
    properties = tuner.device_props
    return FusedTimings(
        problem=source.problem,
        device=properties.type if properties.index is None else f"{properties.type}:{properties.index}",
        search_space=search_space,
        times_ms={config: milliseconds for config, (milliseconds, _) in heard.items()},
        told={config: told for config, (_, told) in heard.items()},
        with_copies=source.is_timed_with_copies,
    )
