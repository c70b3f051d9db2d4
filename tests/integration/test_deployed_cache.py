"""Times of the hook's own clock in Inductor's cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hooked import hooked, watching
from known_times import KnowingTimer, close, compile_in, device, fails
from torch._inductor.select_algorithm import AlgorithmSelectorCache

from diode_collectors.inductor.timer import deployed_method
from diode_integration.decide.clock import Clock
from diode_integration.inductor import benchmark
from diode_store.records import GRAPH, READ_FLUSH
from stand_ins import TileModel

if TYPE_CHECKING:
    from diode_integration.choices import DiodeInductorChoices

__all__ = ["device"]
pytestmark = pytest.mark.usefixtures("device")


def test_cached_times_of_the_two_clocks_never_meet() -> None:
    """A later compile gets the times of its own clock back, and the other one times anew."""
    with watching(autotune_local_cache=True) as watch:
        seen = []
        for clock in (Clock.DEPLOYED, Clock.DEPLOYED, Clock.INDUCTOR, Clock.INDUCTOR, Clock.DEPLOYED):
            count, (measurement,) = compile_in(close(clock=clock))
            seen.append((count, measurement.is_replay, measurement.timing_method.regime))
    assert seen == [(1, False, GRAPH), (0, True, GRAPH), (1, False, None), (0, True, None), (0, True, GRAPH)]
    assert len(watch.timed) == 4


def test_times_of_a_clock_that_failed_are_not_cached_as_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Inductor took instead stays under Inductor's key."""
    with watching(autotune_local_cache=True):
        with monkeypatch.context() as patched:
            patched.setattr(benchmark, "captured", fails)
            assert compile_in(close())[0] == 1
        assert compile_in(close(clock="inductor"))[0] == 0
        assert compile_in(close())[0] == 1


def precompiled_in(handler: DiodeInductorChoices, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Compile a product; return whether torch's own ``make_precompile_fn`` found all times in its cache."""
    found: list[bool] = []

    def made(self: Any, choices: Any, name: str, key: str, **_: object) -> Any:
        # What torch's own does first, except under a Python in which it never precompiles.
        found.append(len(self.lookup(choices, name, key, benchmark=None)) == len(choices))
        return dict

    with monkeypatch.context() as patched:
        patched.setattr(AlgorithmSelectorCache, "make_precompile_fn", made)
        compile_in(handler)
    return found


def test_what_is_cached_is_not_precompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are precompiled unless the clock that will be asked has times of them."""
    with watching(autotune_local_cache=True):
        seen = [
            precompiled_in(close(clock=clock), monkeypatch)
            for clock in (Clock.INDUCTOR, Clock.DEPLOYED, Clock.DEPLOYED, Clock.INDUCTOR)
        ]
    assert seen == [[False], [False], [True], [True]]


def test_cached_times_are_of_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model, or another version of the hook, would have weighed what was measured differently."""
    with watching(autotune_local_cache=True):
        first, second = (hooked(TileModel(vendor_us=20.5, sha256=letter * 64)) for letter in "ab")
        assert [compile_in(handler)[0] for handler in (first, second, first, second)] == [1, 1, 0, 0]
        monkeypatch.setattr("diode_integration.inductor.benchmark.HOOK_VERSION", 10_000)
        assert compile_in(first)[0] == 1


def test_cached_times_keep_their_regime(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short kernel that cannot be captured is timed behind a flush, which a replay says too."""
    monkeypatch.setattr(KnowingTimer, "method_for", lambda *_: deployed_method(math.inf))
    with watching(autotune_local_cache=True):
        methods = [compile_in(close())[1][0].timing_method for _ in range(2)]
    assert [method.regime for method in methods] == [READ_FLUSH, READ_FLUSH]
    assert [method.launch_hidden for method in methods] == [True, None]
