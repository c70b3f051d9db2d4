"""Record the choices of compiles as picks: the kernel left alone, or the fastest that Inductor timed.

This runs inside the user's compile: nothing here raises, waits or writes a file.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from diode_collectors.inductor.adapter import annotations_of, config_of_choice, detect_environment, detect_hardware
from diode_collectors.inductor.choice_lists import problem_of_choices, template_hashes_of
from diode_collectors.inductor.fused_timings import FusedListener
from diode_integration.inductor import selector
from diode_integration.inductor.entry import CallMark, RankedCall, listening, mark_of
from diode_integration.inductor.fused import fixed_told_to
from diode_integration.inductor.listing import is_tuned
from diode_integration.picks.search import PickMark, is_unchanged
from diode_store.exchange.picks import Pick
from diode_store.kernels import agrees
from diode_store.ops import OPS, op_of_vendor
from diode_store.records import TimingMethod
from diode_store.timing.noise import slowest_tie_us, usual_sigma
from diode_store.values import safely
from diode_store.values.units import US_PER_MS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from diode_collectors.inductor.fused_source import FusedSource
    from diode_collectors.inductor.fused_timings import FusedTimings
    from diode_store.kernels import KernelConfig
    from diode_store.records import Hardware, Problem

log = logging.getLogger("diode_integration")


class ChosenKernels:
    """Records the choices of every thread's compiles for one device, while it is entered."""

    def __init__(self, hardware: Hardware) -> None:
        """Prepare to record the choices for ``hardware``."""
        self._hardware = hardware
        self._found: dict[bytes, Pick] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._leaving = ExitStack()
        self._is_said = False

    @property
    def picks(self) -> list[Pick]:
        """Picks so far; for a problem that was compiled several times the last choice."""
        with self._lock:
            return list(self._found.values())

    def __enter__(self) -> Self:
        """Begin to record."""
        self._leaving.enter_context(listening(self._on_selection))
        self._leaving.enter_context(selector.timings_told_to(self._on_feedback))
        self._leaving.enter_context(fixed_told_to(self._on_fixed))
        fused = FusedListener(self._on_fused, self._failed)
        self._leaving.callback(fused.stop)
        fused.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop recording."""
        self._leaving.close()

    def _on_selection(self, choices: list[Any], left: list[Any]) -> None:
        """Note an op with a single choice left: Inductor takes that choice and tells nobody."""
        try:
            if os.getpid() == self._pid and len(left) == 1 and is_tuned() and self._is_of_device(left[0]):
                pick = _picked_alone(choices, left[0])
                if pick is not None:
                    self._keep(pick)
        except Exception as error:  # noqa: BLE001 - an exception here would abort the user's compile
            self._failed(error)

    def _on_feedback(
        self, timings: Any = None, name: Any = None, input_nodes: Any = (), _choices: Any = (), *_: Any, **__: Any
    ) -> None:
        """Note an op that Inductor timed; some versions of torch pass more arguments than others."""
        try:
            if os.getpid() != self._pid or name not in OPS:
                return
            fastest = sorted(
                (choice for choice, milliseconds in timings.items() if 0 < milliseconds < math.inf), key=timings.get
            )
            if fastest and self._is_of_device(fastest[0]):
                problem = problem_of_choices(name, input_nodes, fastest)
                self._keep(_picked_by_time(problem, fastest, timings))
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)

    def _on_fixed(self, source: FusedSource, config: KernelConfig, device: Any) -> None:
        """Note a fused kernel to which the hook left a single config."""
        try:
            if os.getpid() == self._pid and self._is_ours(device):
                self._keep(Pick(source.problem, (config,), detect_environment()))
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)

    def _on_fused(self, timings: FusedTimings) -> None:
        """Note a fused kernel that Inductor timed. Coordinate descent may follow, and finds faster configs."""
        times_us = {config: each * US_PER_MS for config, each in timings.times_ms.items() if 0 < each < math.inf}
        if os.getpid() != self._pid or not times_us or not self._is_ours(timings.device):
            return
        with self._lock:
            before = self._found.get(timings.problem.key)
        fastest = sorted(times_us, key=lambda config: times_us[config])
        best_us = times_us[fastest[0]]
        if before is None or before.runtime_us is None or best_us < before.runtime_us:
            tied = tuple(config for config in fastest if times_us[config] <= _tie_limit_us(best_us))
            self._keep(Pick(timings.problem, tied, detect_environment(), best_us))

    def _is_of_device(self, choice: Any) -> bool:
        return self._is_ours(choice.layout.device)

    def _is_ours(self, device: Any) -> bool:
        found = detect_hardware(device)
        return found is not None and found.key == self._hardware.key

    def _keep(self, pick: Pick) -> None:
        with self._lock:
            self._found.pop(pick.problem.key, None)
            self._found[pick.problem.key] = pick

    def _failed(self, error: Exception) -> None:
        if not self._is_said:
            self._is_said = True
            safely.log(log, logging.WARNING, f"a choice was not locked: {safely.in_words(error)} (logged once)")


def _picked_by_time(problem: Problem, fastest: Sequence[Any], timings: Mapping[Any, float]) -> Pick:
    """Return Inductor's choice by time, with the choices within noise of it."""
    best_us = timings[fastest[0]] * US_PER_MS
    tied = [choice for choice in fastest if timings[choice] * US_PER_MS <= _tie_limit_us(best_us)]
    configs = tuple(dict.fromkeys(map(config_of_choice, tied)))
    environment = replace(detect_environment(), template_hashes=template_hashes_of(tied))
    return Pick(problem, configs, environment, best_us)


def _tie_limit_us(best_us: float) -> float:
    """Return the longest time that is within noise of the best, by Inductor's clock."""
    return slowest_tie_us(best_us, usual_sigma(best_us, [TimingMethod()]))


def _picked_alone(choices: Sequence[Any], choice: Any) -> Pick | None:
    """Return the only choice left of ``choices``, or None if it is no matrix product with a name."""
    marks = [mark for each in choices if (mark := mark_of(each, PickMark)) is not None]
    problem = marks[0].sought.pick.problem if marks else _problem_of(choices, choice)
    if problem is None:
        return None
    config = config_of_choice(choice)
    hashes = template_hashes_of([choice])
    if marks:
        known = marks[0].sought.pick
        named = next((each for each in known.configs if agrees(config, each)), None)
        if named is not None and is_unchanged(known, named.template, hashes.get(named.template)):
            return known  # keeps the measured time of the picks file
    return Pick(problem, (config,), replace(detect_environment(), template_hashes=hashes))


def _problem_of(choices: Sequence[Any], choice: Any) -> Problem | None:
    """Return the problem from the hook's marks, or without marks from the vendor kernel."""
    for each in choices:
        mark = mark_of(each, CallMark)
        if mark is not None:
            return mark.call.ranking.problem if isinstance(mark.call, RankedCall) else mark.call.decision.problem
    ktc = annotations_of(choice).get("ktc")
    op = None if ktc is None else op_of_vendor(config_of_choice(choice).template)
    return None if ktc is None or op is None else problem_of_choices(op, ktc.inputs.nodes(), [choice])
