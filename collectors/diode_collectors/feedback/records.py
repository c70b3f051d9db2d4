"""Convert one feedback event of Inductor's autotuner to a ``Measurement``.

Inductor's milliseconds become microseconds here, and its ``inf`` becomes an outcome. A sweep times kernels itself and
converts its own times in ``sweep.lane.measuring``.
"""

from __future__ import annotations

import math
import socket
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from diode_collectors.inductor.adapter import POLICY_ANNOTATION, annotations_of, config_of_choice
from diode_collectors.inductor.choice_lists import problem_of_choices, template_hashes_of
from diode_collectors.inductor.clocked import clocked_of, method_of
from diode_collectors.inductor.device import collector_version, detect_environment, detect_hardware, device_uuid
from diode_store.errors import RecordError
from diode_store.ops import OPS
from diode_store.records import (
    STOCK_POLICY,
    DeviceState,
    Hardware,
    KernelConfig,
    Measurement,
    Outcome,
    Source,
    Timing,
    TimingMethod,
)
from diode_store.values.units import US_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    TimingOf = Callable[[Any, KernelConfig, float], Timing]

STAND_IN_MASK = "stand_in_mask"
"""Flag of attention that Inductor timed: with a mask of its own, and with a function of scores that nobody knows."""
_BENCHMARKS = "select_algorithm_autotune"

# Statistic of each of Inductor's benchmarkers. Only the one that asks the profiler hides the launch.
_METHODS = {
    "InductorBenchmarker": TimingMethod(statistic="min", flush_l2=True, launch_hidden=False),
    "TritonBenchmarker": TimingMethod(statistic="median", flush_l2=True, launch_hidden=False),
    "TorchProfilerBenchmarker": TimingMethod(statistic="mean", flush_l2=True, launch_hidden=True),
}
_CPU_METHOD = TimingMethod(statistic="median", flush_l2=False, launch_hidden=False)


class ReplayDetector:
    """Distinguishes fresh timings from those that Inductor's cache replays.

    Inductor counts its benchmarks. If the count has not moved since the last event, an event brings cached timings, bit
    for bit those of an earlier event. A compiled graph that comes from a cache moves the count too, so a listener calls
    ``look`` when Inductor begins to choose.

    The count belongs to the process, and Dynamo's compile lock lets one compile run at a time. If two ran at once, the
    benchmarks of one could make a replay in the other look like a measurement.
    """

    def __init__(self) -> None:
        self._counter = _counters("inductor")
        self._seen = self._counter[_BENCHMARKS]
        self._hits = _graph_cache_hits()
        self._silent = 0

    @property
    def silent(self) -> int:
        """Number of benchmarks that no event followed: all choices failed, and Inductor gave up."""
        return self._silent + (0 if _graph_cache_hits() != self._hits else self._unseen()[0])

    def look(self) -> None:
        """Forget what moved the count so far; call this when Inductor is about to choose."""
        self._silent = self.silent
        self._keep()

    def is_replay(self) -> bool:
        """Return True if nothing was benchmarked since the last call, or since this was made."""
        moved, is_replay = self._unseen()
        self._silent += max(0, moved - 1)
        self._keep()
        return is_replay

    def _unseen(self) -> tuple[int, bool]:
        """Return how far the count moved, and whether it stood still."""
        counter = _counters("inductor")
        before = self._seen if counter is self._counter else 0  # torch clears its counters by making new ones
        return counter[_BENCHMARKS] - before, counter[_BENCHMARKS] == before

    def _keep(self) -> None:
        self._counter = _counters("inductor")
        self._seen = self._counter[_BENCHMARKS]
        self._hits = _graph_cache_hits()


class RecordContext(TypedDict, total=False):
    """Facts about an event that only the listener knows; every field may be left out."""

    uid: bytes
    source: Source
    """Origin of the compile; ``Source.FEEDBACK`` by default."""
    is_replay: bool
    """True if the timings came from Inductor's cache."""
    sweep_id: str | None
    """Sweep that started the compile."""
    sample_seed: int | None
    """Seed of the sweep's problems."""
    family: str | None
    """Family of problems that the sweep took this problem from."""
    search_space: str | None
    """Set of configs that were listed; Inductor's setting by default."""
    timing_method: TimingMethod | None
    """Method of timing. By default the one that the hook's clock notes on the choices, else that of Inductor's
    benchmarker."""
    device_state: DeviceState
    flags: tuple[str, ...]
    """Reasons not to trust the timings."""
    extra: Mapping[str, Any]


def measurement_from_feedback(
    timings: Mapping[Any, float],
    name: str,
    input_nodes: Sequence[Any],
    choices: Sequence[Any] = (),
    *,
    lost: Sequence[Any] = (),
    timing_of: TimingOf | None = None,
    **context: Unpack[RecordContext],
) -> Measurement:
    """Return an autotuning event as a record.

    Choices with the same config keep the fastest time. Choices that do not describe themselves are left out and counted
    in ``extra["unreadable_choices"]``.

    Args:
        timings: choice → milliseconds; ``inf`` for a failed choice.
        name: Inductor's name of the op.
        input_nodes: the op's inputs, the bias first.
        choices: the choices of the event, which say who listed them.
        lost: choices that did not compile, which are in neither of the two.
        timing_of: makes the timing of a choice from the choice, its config and its milliseconds. Callers pass it when
            they know repeats, percentiles or the reason of a failure.
        context: the rest of the record, see ``RecordContext``.

    Raises:
        RecordError: an op or inputs that no record can hold, an unknown device, or no readable choice.
    """
    found, readable, unreadable = _timings(name, timings, lost, timing_of or _timing)
    device = input_nodes[0].get_device()
    if unreadable:
        context["extra"] = {**context.get("extra", {}), "unreadable_choices": unreadable}
    hardware, problem = _hardware(name, device), problem_of_choices(name, input_nodes, readable)
    if problem.op in OPS and OPS[problem.op].is_attention:
        context.setdefault("flags", (STAND_IN_MASK,))
    return Measurement(
        hardware=hardware,
        environment=replace(detect_environment(), template_hashes=template_hashes_of(readable)),
        problem=problem,
        timings=found,
        measured_at=datetime.now(UTC),
        host=socket.gethostname(),
        device_uuid=device_uuid(device),
        collector_version=collector_version(),
        choice_policy=choice_policy([*readable, *choices]),
        **_with_defaults(context, device.type, timings),
    )


def choice_policy(choices: Iterable[Any]) -> str:
    """Return who listed ``choices``: ``stock``, or the hook that filtered them.

    Our hook marks the choices that it filtered. Any other handler that overrides Inductor's list counts as a filter.
    """
    for choice in choices:
        said = annotations_of(choice).get(POLICY_ANNOTATION)
        if said:
            return str(said)
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    listing = V.choices._finalize_template_configs  # noqa: SLF001 - the hook has no public name in any version
    owner = getattr(listing, "__self__", None)
    ours = getattr(owner, "annotates_choices", False)
    if ours or getattr(listing, "__func__", None) is InductorChoices._finalize_template_configs:  # noqa: SLF001 - as above
        return STOCK_POLICY
    return f"hook:{type(owner).__name__}"


def _with_defaults(context: RecordContext, device_type: str, timings: Mapping[Any, float]) -> dict[str, Any]:
    """Return ``context`` with the defaults of an autotuning event, which differ from those of ``Measurement``."""
    return {
        **context,
        "uid": context.get("uid") or uuid.uuid4().bytes,
        "source": context.get("source", Source.FEEDBACK),
        "search_space": context.get("search_space") or _search_space(),
        "timing_method": context.get("timing_method") or method_of(timings) or inductors_method(device_type),
    }


def _counters(group: str) -> Any:
    from torch._dynamo.utils import counters

    return counters[group]


def _graph_cache_hits() -> tuple[int, int]:
    return _counters("inductor")["fxgraph_cache_hit"], _counters("aot_autograd")["autograd_cache_hit"]


def _hardware(name: str, device: Any) -> Hardware:
    hardware = detect_hardware(device)
    if hardware is None:
        raise RecordError(f"{name}: timings of a {device.type} device cannot be recorded")
    return hardware


def _timings(
    name: str, timings: Mapping[Any, float], lost: Sequence[Any], timing_of: TimingOf
) -> tuple[tuple[Timing, ...], list[Any], int]:
    """Return each config's best timing in the order first seen, the choices read, and the number of unreadable ones."""
    found: dict[KernelConfig, Timing] = {}
    readable: list[Any] = []
    unreadable = 0
    for choice, milliseconds in chain(timings.items(), zip(lost, repeat(None))):
        try:
            config = config_of_choice(choice)
            timing = _lost(config) if milliseconds is None else timing_of(choice, config, float(milliseconds))
            before = found.get(config)
            if before is None or _says_more(timing, before):
                found[config] = timing
            readable.append(choice)
        except Exception:  # noqa: BLE001 - a choice that cannot be read must not cost the others of its event
            unreadable += 1
    if not found:
        raise RecordError(f"{name}: none of {unreadable} choices could be read")
    return tuple(found.values()), readable, unreadable


def _timing(choice: Any, config: KernelConfig, milliseconds: float) -> Timing:
    clocked = clocked_of(choice, milliseconds)
    timing = clocked.timing(config) if clocked is not None else None
    return timing_in_ms(config, milliseconds) if timing is None else timing


def timing_in_ms(config: KernelConfig, milliseconds: float) -> Timing:
    """Return what Inductor's benchmark says of a config; ``inf`` is a failure."""
    if not math.isfinite(milliseconds) or milliseconds <= 0:
        return Timing(config, None, Outcome.FAILED_UNSPECIFIED)
    return Timing(config, milliseconds * US_PER_MS)


def _lost(config: KernelConfig) -> Timing:
    return Timing(config, None, Outcome.COMPILE_ERROR)


def _says_more(timing: Timing, other: Timing) -> bool:
    """Return True to keep ``timing``: it is faster than ``other``, or both failed and it has a reason."""
    if timing.runtime_us is not None:
        return other.runtime_us is None or timing.runtime_us < other.runtime_us
    return other.outcome is Outcome.FAILED_UNSPECIFIED


def _search_space() -> str:
    from torch._inductor import config

    return str(config.max_autotune_gemm_search_space)


def inductors_method(device_type: str) -> TimingMethod:
    """Return how Inductor's benchmark times kernels of a device."""
    if device_type == "cpu":
        return _CPU_METHOD
    from torch._inductor.runtime.benchmarking import benchmarker

    return _METHODS.get(type(benchmarker).__name__, TimingMethod())
