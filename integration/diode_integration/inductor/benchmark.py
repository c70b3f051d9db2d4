"""Time the candidates left by the hook with torch-diode's clock, in place of Inductor's benchmark.

Inductor's benchmark charges a short vendor kernel its launch, and then picks wrong. This module wraps two methods of
Inductor's selector, in every version of torch. ``benchmark_choices`` times. ``lookup`` keeps timings from one process
to the next, under keys of this clock's own, so that the two clocks never share a cached time.

The clock times only ops that a model decided, only on NVIDIA GPUs, and only in this process. If anything goes wrong,
Inductor's benchmark runs.
"""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._inductor import config as inductor_config

from diode_collectors.inductor.brief import Entrant, compare, standing
from diode_collectors.inductor.clocked import Clocked, note
from diode_collectors.inductor.graphs import OperandSets
from diode_collectors.inductor.running import captured, rotation_of, unload
from diode_collectors.inductor.timer import GpuTimer, deployed_method
from diode_integration.decide.clock import Clock, Timed
from diode_integration.decide.weighing import NOTHING_EXPECTED, Expected, expected_of, posterior, repeat_error
from diode_integration.inductor.entry import HOOK_VERSION, CallMark, Handler, RankedCall, mark_of
from diode_store.errors import DiodeError
from diode_store.records import GRAPH, READ_FLUSH
from diode_store.values.units import US_PER_MS
from diode_trainer.policy import Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from diode_collectors.inductor.brief import Compared
    from diode_collectors.inductor.timer import Timer
    from diode_integration.decide.ranking import Ranking

_BENCHMARK, _LOOKUP = "benchmark_choices", "lookup"
_CACHE_KEY = "torch-diode clock 2"
"""Part of the key of cached timings; raise it when the clock would time differently."""
_REGIMES = (GRAPH, READ_FLUSH)
"""Regimes of this clock. Inductor's cache holds nothing but numbers, so the regime is part of the key."""
_OPERANDS_SHARE = 0.25
"""Share of the device's free memory for copies of operands; kernels that need more are timed without copies."""
_FEWEST = 2
_LEFT_TO_INDUCTOR = ("autotune_in_subproc", "deterministic", "profile_bandwidth_with_do_bench_using_profiling")
"""Settings of Inductor that need its own benchmark."""

_engaging = threading.Lock()
_ours: dict[str, Any] = {}
_undo: dict[str, Callable[[], None]] = {}
_timing = threading.RLock()
_timers: dict[int, GpuTimer] = {}
_here = threading.local()


@dataclass(frozen=True)
class _Asked:
    """One op with candidates to time."""

    owner: Handler
    expected: Mapping[Any, Expected]
    """Choice → the model's expectation."""
    key: str
    """Part of the key of cached times: all that the weighing depends on."""


@dataclass(frozen=True)
class _DeviceClock:
    """Timer of one device, and its share of memory."""

    timer: Timer
    most_bytes: float
    """Number of bytes that copies of operands may take."""


def engage_for(owner: Handler) -> None:
    """Engage the clock if a handler needs it, and turn the handler's clock off if that fails. Never raises."""
    if owner.clock is not Clock.DEPLOYED or owner.observe or owner.policy.mode is Mode.ZERO:
        return
    try:
        ensure_engaged()
    except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
        owner.clock = Clock.INDUCTOR
        owner.clock_failed(error)


def ensure_engaged() -> None:
    """Wrap Inductor's benchmark, unless it is wrapped."""
    kind = _selector()
    with _engaging:
        for name, make in ((_BENCHMARK, _benchmark), (_LOOKUP, _lookup)):
            if name not in _ours or vars(kind).get(name) is not _ours[name]:
                _wrap(kind, name, make)


def disengage() -> None:
    """Restore Inductor's benchmark, and drop the timers; later wrappers around ours stay.

    The caching allocator keeps the memory of the timers for reuse, and frees it before it reports that it is out of
    memory. ``torch.cuda.empty_cache`` would free it now. But it also waits for the device, frees other unused blocks,
    and disturbs a graph that another thread captures.
    """
    with _engaging:
        for undo in _undo.values():
            undo()
        _undo.clear()
        _ours.clear()
        _timers.clear()


def time_choices(kind: Any, choices: Sequence[Any], tensors: Any) -> dict[Any, float] | None:
    """Return the milliseconds of each choice; None if Inductor has to benchmark them.

    Args:
        kind: Inductor's ``AlgorithmSelectorCache``.
        choices: the choices that compiled.
        tensors: the inputs and outputs that Inductor prepared.
    """
    asked = _asked(kind, choices)
    if asked is None:
        return None
    started = perf_counter()
    try:
        with _clock_of(tensors.get_benchmark_tensors().unpack()[1].device) as clock:
            if clock is None:
                return None
            compared, entrants = _compare(kind, choices, tensors, asked, clock)
        times_us, is_by_prior = weighed(choices, entrants, compared, asked.expected)
        for choice, entrant in zip(choices, entrants, strict=True):
            _note(choice, entrant, compared, times_us[choice])
        first = min(choices, key=lambda choice: _or_inf(asked.expected[choice].us))
        is_as_predicted = min(times_us, key=times_us.__getitem__) is first
        asked.owner.clocked(Timed(perf_counter() - started, compared.spent_us, is_as_predicted, is_by_prior))
    except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
        asked.owner.clock_failed(error)
        return None
    _here.regime = compared.method.regime
    return {choice: us / US_PER_MS for choice, us in times_us.items()}


def weighed(
    choices: Sequence[Any], entrants: Sequence[Entrant], compared: Compared, expected: Mapping[Any, Expected]
) -> tuple[dict[Any, float], bool]:
    """Weigh the model's predictions into the measured times.

    Returns:
        The microseconds of each choice, and whether the predictions decided.

    Raises:
        DiodeError: no choice could be timed.
    """
    times_us = {choice: entrant.median_us for choice, entrant in zip(choices, entrants, strict=True)}
    if not any(map(np.isfinite, times_us.values())):
        raise DiodeError(f"no kernel could be timed: {next((e.error for e in entrants if e.error), 'none ran')}")
    near = [i for i, entrant in enumerate(entrants) if np.isfinite(entrant.median_us) and not entrant.is_estimate]
    if not near:
        return times_us, False
    logs, errors = standing([entrants[i].logs for i in near])
    repeats = [repeat_error(entrants[i].median_us, compared.method) for i in near]
    said = [expected[choices[i]] for i in near]
    with np.errstate(divide="ignore", invalid="ignore"):
        predicted = np.log([each.us for each in said])
    mixed = posterior(logs, np.hypot(errors, repeats), predicted, np.array([each.spread for each in said]))
    times_us.update({choices[i]: float(us) for i, us in zip(near, np.exp(mixed), strict=True)})
    return times_us, bool(mixed.argmin() != logs.argmin())


def _selector() -> Any:
    from torch._inductor.select_algorithm import AlgorithmSelectorCache  # circular at module level

    return AlgorithmSelectorCache


def _wrap(kind: Any, name: str, make: Callable[[Any], Any]) -> None:
    stock = vars(kind).get(name)
    ours = _ours[name] = make(getattr(kind, name) if stock is None else stock)

    def undo() -> None:
        if vars(kind).get(name) is not ours:
            return
        if stock is None:
            delattr(kind, name)
        else:
            setattr(kind, name, stock)

    _undo[name] = undo
    setattr(kind, name, ours)


def _benchmark(stock: Any) -> Any:
    """Return a ``benchmark_choices`` that times ops decided by the hook."""

    def benchmark(kind: Any, choices: Any, tensors: Any, *rest: Any, **options: Any) -> Any:
        is_collective = options.get("is_collective", bool(rest and rest[0]))
        _here.regime = None
        found = None if is_collective else time_choices(kind, choices, tensors)
        return stock.__get__(None, kind)(choices, tensors, *rest, **options) if found is None else found

    return classmethod(benchmark)


def _lookup(stock: Callable[..., Any]) -> Any:
    """Return a ``lookup`` that keeps this clock's times apart from Inductor's."""

    @functools.wraps(stock)
    def lookup(self: Any, choices: Any, op: str, inputs: str, benchmark: Any = None, *rest: Any, **options: Any) -> Any:
        asked = _asked(type(self), choices)
        if asked is None:
            return stock(self, choices, op, inputs, benchmark, *rest, **options)
        keys = {regime: f"{inputs}/{asked.key}/{regime}" for regime in _REGIMES}
        for regime, ours in keys.items():
            found = stock(self, choices, op, ours, None, *rest, **options)
            if found and len(found) == len(choices):
                _note_replay(found, regime)
                return found
        if benchmark is None:  # Inductor precompiles what is not cached
            return {}
        _here.regime = None
        timings = benchmark(choices)
        key = keys.get(_here.regime, inputs)
        return stock(self, choices, op, key, lambda _choices: timings, *rest, **options)

    return lookup


def _asked(kind: Any, choices: Sequence[Any]) -> _Asked | None:
    """Return the op to time; None if Inductor has to benchmark it."""
    try:
        if len(choices) < _FEWEST or any(getattr(inductor_config, name, False) for name in _LEFT_TO_INDUCTOR):
            return None
        marks = [mark_of(choice, CallMark) for choice in choices]
        known = [mark for mark in marks if mark is not None]
        ranked = [mark.call for mark in known if isinstance(mark.call, RankedCall)]
        owner = known[0].owner if ranked else None
        if owner is None or owner.observe or owner.clock is not Clock.DEPLOYED or not _is_nvidias(choices[0]):
            return None
        # If Inductor benchmarks templates in another process, it asks for the vendor kernels alone.
        if all(kind._is_extern(choice) for choice in choices):  # noqa: SLF001 - how Inductor itself marks it
            return None
        expected = {choice: _expected(mark) for choice, mark in zip(choices, marks, strict=True)}
        return _Asked(owner, expected, _key(owner, [call.ranking for call in ranked]))
    except Exception:  # noqa: BLE001 - these may be anybody's objects
        return None


def _key(owner: Handler, rankings: Sequence[Ranking]) -> str:
    """Return a key that differs wherever times would be weighed differently."""
    corrections = owner.models.corrections if owner.models else None
    said = sorted({f"{each.model_sha256} {each.hardware.key.hex()} {each.near_to}" for each in rankings})
    return "/".join((_CACHE_KEY, str(HOOK_VERSION), *said, corrections.key if corrections else "uncorrected"))


def _is_nvidias(choice: Any) -> bool:
    return choice.layout.device.type == "cuda" and torch.version.hip is None


def _expected(mark: CallMark | None) -> Expected:
    if mark is None or mark.index is None or not isinstance(mark.call, RankedCall):
        return NOTHING_EXPECTED
    return expected_of(mark.call.ranking, mark.index)


@contextmanager
def _clock_of(device: torch.device) -> Iterator[_DeviceClock | None]:
    """Hold the clock of a device, and make the device current; None if nothing can be timed there now."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        yield None
        return
    with _timing, torch.cuda.device(device):
        place = torch.cuda.current_device()
        timer = _timers.get(place) or _timers.setdefault(place, GpuTimer())
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        try:
            yield _DeviceClock(timer, _OPERANDS_SHARE * free)
        finally:
            timer.release()


def _compare(
    kind: Any, choices: Sequence[Any], tensors: Any, asked: _Asked, clock: _DeviceClock
) -> tuple[Compared, list[Entrant]]:
    """Time the choices on the current device."""
    both = [tensors.get_benchmark_tensors(is_extern).unpack() for is_extern in (True, False)]
    sets = OperandSets([t for inputs, output in both for t in (*inputs, output)], most_bytes=clock.most_bytes)
    entrants = {choice: _entrant(kind, choice, tensors, sets) for choice in choices}
    in_order = sorted(choices, key=lambda choice: _or_inf(asked.expected[choice].us))
    try:
        compared = compare([entrants[choice] for choice in in_order], clock.timer)
        clock.timer.synchronize()
    finally:
        for choice, entrant in entrants.items():
            entrant.forget()
            unload(choice)
    return compared, list(entrants.values())


def _entrant(kind: Any, choice: Any, tensors: Any, sets: OperandSets) -> Entrant:
    inputs, output = tensors.get_benchmark_tensors(kind._is_extern(choice)).unpack()  # noqa: SLF001 - as above

    def prepare() -> Callable[[], object]:
        return captured(choice, lambda: kind.benchmark_choice(choice, tensors))

    return Entrant(prepare, rotation_of(choice, [*inputs, output], sets) if _is_one_kernel(choice) else None)


def _is_one_kernel(choice: Any) -> bool:
    """Return whether it is cheap to prepare a choice again; a choice that is a graph may be compiled each time."""
    return not any(kind.__name__ == "SubgraphChoiceCaller" for kind in type(choice).__mro__)


def _note(choice: Any, entrant: Entrant, compared: Compared, us: float) -> None:
    times = tuple(entrant.times_us) if np.isfinite(us) else ()
    note(choice, Clocked(us / US_PER_MS, compared.method, times, entrant.is_estimate, entrant.outcome))


def _note_replay(timings: Mapping[Any, float], regime: str) -> None:
    """Attach cached times to their choices. Whether all of their launches were hidden is unknown."""
    with suppress(Exception):  # these may be anybody's objects
        for choice, milliseconds in timings.items():
            note(choice, Clocked(milliseconds, replace(deployed_method(0.0), launch_hidden=None, regime=regime)))


def _or_inf(us: float) -> float:
    return us if np.isfinite(us) else float("inf")
