"""How many candidates are kept, which, and when none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_store.errors import SettingsError
from diode_trainer.card import Calibration
from diode_trainer.policy import ANY_RATIO, KeptCandidates, Mode, Policy, Spread, parse_mode, select
from diode_trainer.uncertainty import timed_together

if TYPE_CHECKING:
    from collections.abc import Sequence

INF = math.inf


def kept(predicted: Sequence[float], vendor: Sequence[int] = (), policy: Policy | None = None) -> tuple[int, ...]:
    """Return which candidates are kept, the ``vendor`` ones being a vendor's."""
    return chosen(predicted, vendor, policy).indices


def chosen(predicted: Sequence[float], vendor: Sequence[int] = (), policy: Policy | None = None) -> KeptCandidates:
    """Return the selection of ``predicted`` microseconds."""
    is_vendor = np.isin(np.arange(len(predicted)), list(vendor))
    return select(np.array(predicted, dtype=np.float64), is_vendor, policy or Policy())


def test_keeps_the_fastest_three_in_order() -> None:
    """Of many within the threshold, the three fastest are kept, fastest first."""
    assert kept([10.4, 10.0, 10.3, 10.1, 10.2]) == (1, 3, 4)


def test_drops_what_is_beyond_the_threshold() -> None:
    """What is predicted more than 10% slower than the best is dropped, the limit itself is kept."""
    assert kept([10.0, 11.0, 11.01, 30.0]) == (0, 1)


def test_threshold_of_one_keeps_only_the_best() -> None:
    """A threshold of 1.0 keeps the best alone, and those that tie with it."""
    assert kept([10.0, 10.0, 10.001], policy=Policy(performance_threshold=1.0)) == (0, 1)


def test_ties_keep_the_listing_order() -> None:
    """Equal predictions are kept in the order in which Inductor listed them."""
    assert kept([10.0, 10.0, 10.0, 10.0]) == (0, 1, 2)


def test_vendor_counts_like_any_other() -> None:
    """A vendor kernel among the first three takes one of their places."""
    assert kept([10.0, 10.2, 10.3, 10.1], vendor=[3]) == (0, 3, 1)


def test_vendor_is_kept_beside_faster_templates() -> None:
    """A vendor kernel within the threshold is kept beside the first three, as timing it needs no compilation."""
    assert kept([10.0, 10.1, 10.2, 10.9, 10.8], vendor=[4]) == (0, 1, 2, 4)


def test_slow_vendor_stands_by() -> None:
    """A vendor kernel beyond the threshold is kept behind templates: it is what is left if they all fail."""
    assert kept([10.0, 10.1, 12.0], vendor=[2]) == (0, 1, 2)


def test_clear_vendor_is_kept_alone() -> None:
    """A vendor kernel that leads by more than the threshold is kept alone."""
    assert kept([12.0, 13.0, 10.0], vendor=[2]) == (2,)


def test_only_the_best_variant_of_the_vendor_is_kept() -> None:
    """Of a vendor's variants (addmm, bias_addmm) only the best is kept, whatever is within the threshold."""
    assert kept([10.1, 10.0, 10.2, 10.3, 10.4], vendor=[0, 1]) == (1, 2, 3)


@pytest.mark.parametrize(
    ("predicted", "expected"), [([10.0, 10.0, 9.9], (2,)), ([9.8, 10.0, 9.9], (0,))], ids=["vendor", "template"]
)
def test_zero_mode_keeps_exactly_one(predicted: list[float], expected: tuple[int, ...]) -> None:
    """Zero mode keeps the best prediction and nothing beside it, vendor or not."""
    assert kept(predicted, vendor=[2], policy=Policy(mode=Mode.ZERO)) == expected


def test_what_cannot_run_is_never_kept() -> None:
    """Candidates without a finite prediction are left out."""
    assert kept([INF, 10.0, math.nan, 10.1]) == (1, 3)


def test_vendor_is_kept_when_there_is_no_prediction() -> None:
    """Without any prediction the vendor kernel is kept, so that the list is not empty."""
    assert chosen([INF, INF], vendor=[1]) == KeptCandidates((1,), "no prediction: vendor kept")


def test_nothing_is_kept_when_nothing_can_run() -> None:
    """Without a prediction and without a vendor kernel, nothing is kept and the reason says so."""
    assert chosen([INF, math.nan]) == KeptCandidates((), "no candidate fits")


@pytest.mark.parametrize(
    ("predicted", "policy", "expected"),
    [
        ([9.0, 10.0], Policy(), "the vendor's kernel is predicted fastest and leads by more than 1.1"),
        ([9.0, 9.1], Policy(mode=Mode.ZERO), "the vendor's kernel is predicted fastest and is kept alone"),
        ([10.0, 9.5], Policy(), "a template is predicted fastest; 2 kept within 1.1"),
        ([INF, 9.5, 9.6], Policy(), "a template is predicted fastest; 2 kept within 1.1"),
        (
            [20.0, 9.5, 12.0],
            Policy(),
            "a template is predicted fastest and leads by more than 1.1; the vendor's kernel is kept too",
        ),
    ],
    ids=["clear", "zero", "close", "without", "behind"],
)
def test_reason_says_why(predicted: list[float], policy: Policy, expected: str) -> None:
    """The reason names the winner, how many are close and whether the vendor's kernel is kept too."""
    assert chosen(predicted, vendor=[0], policy=policy).reason == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k_configs": 0}, "top_k_configs must be a whole number of at least 1, not 0"),
        ({"top_k_configs": True}, "top_k_configs must be a whole number of at least 1, not True"),
        ({"top_k_configs": 2.0}, "top_k_configs must be a whole number of at least 1, not 2.0"),
        ({"performance_threshold": 0.9}, "performance_threshold must be a ratio of at least 1.0, not 0.9"),
        ({"performance_threshold": math.nan}, "performance_threshold must be a ratio of at least 1.0, not nan"),
        ({"kernel_price": 0}, "kernel_price must be a share above 0, such as 0.01 for 1%, not 0"),
        ({"kernel_price": math.inf}, "kernel_price must be a share above 0, such as 0.01 for 1%, not inf"),
        ({"kernel_price": "1%"}, "kernel_price must be a share above 0, such as 0.01 for 1%, not '1%'"),
        ({"performance_threshold": "2"}, "performance_threshold must be a ratio of at least 1.0, not '2'"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    """A setting that cannot be used is refused in one line."""
    with pytest.raises(SettingsError) as refused:
        Policy(**settings)
    assert str(refused.value) == message


def test_unknown_mode_is_refused() -> None:
    """A mode that does not exist is refused with those that do."""
    with pytest.raises(SettingsError) as refused:
        parse_mode("one")
    assert str(refused.value) == "mode must be one of top_k, zero, adaptive, not 'one'"


def test_key_tells_policies_apart() -> None:
    """Every setting shows in the key, and equal settings have equal keys."""
    policies = [Policy(), Policy(2), Policy(3, 1.2), Policy(mode=Mode.ZERO)]
    assert [policy.key for policy in policies] == ["top_k/3/1.1", "top_k/2/1.1", "top_k/3/1.2", "zero/3/1.1"]
    assert Policy(3, 1).key == Policy(3, 1.0).key
    adaptive = [Policy(mode=Mode.ADAPTIVE), Policy(mode=Mode.ADAPTIVE, kernel_price=0.01)]
    assert [policy.key for policy in adaptive] == ["adaptive/3/1.1/model's", "adaptive/3/1.1/0.01"]


TIMES = st.lists(st.floats(0.5, 100.0) | st.sampled_from([1.0, 2.0, INF, math.nan]), min_size=1, max_size=30)
POLICIES = st.builds(Policy, st.integers(1, 5), st.floats(1.0, 2.0), st.sampled_from(Mode))


@given(times=TIMES, vendors=st.sets(st.integers(0, 29), max_size=3), policy=POLICIES)
def test_selection_holds_what_it_promises(times: list[float], vendors: set[int], policy: Policy) -> None:
    """Whatever is predicted: the best is first, no more than promised, templates within the threshold, one vendor."""
    indices = kept(times, tuple(vendors), policy)
    finite = [time for time in times if math.isfinite(time)]
    if not finite:
        assert len(indices) == int(any(index < len(times) for index in vendors))
        return
    assert times[indices[0]] == min(finite)
    assert len(indices) <= (1 if policy.mode is Mode.ZERO else policy.top_k_configs + 1)
    templates = [index for index in indices if index not in vendors]
    assert all(times[index] <= min(finite) * policy.performance_threshold for index in templates)
    offered = any(math.isfinite(times[index]) for index in vendors if index < len(times))
    kept_vendors = len(indices) - len(templates)
    assert kept_vendors == int(offered) if policy.mode is Mode.TOP_K else kept_vendors <= 1
    assert len(set(indices)) == len(indices)


@given(times=TIMES, vendors=st.sets(st.integers(0, 29), max_size=3), policy=POLICIES)
def test_selecting_twice_changes_nothing(times: list[float], vendors: set[int], policy: Policy) -> None:
    """Selecting among what was kept keeps all of it, so the hook may narrow a list before the final selection."""
    indices = kept(times, tuple(vendors), policy)
    again = kept([times[i] for i in indices], [i for i, index in enumerate(indices) if index in vendors], policy)
    assert [indices[i] for i in again] == list(indices)


@given(
    times=TIMES,
    vendors=st.sets(st.integers(0, 29), max_size=3),
    policy=POLICIES,
    cut=st.integers(0, 30),
)
def test_narrowing_calls_apart_loses_nothing(times: list[float], vendors: set[int], policy: Policy, cut: int) -> None:
    """What is kept of a whole op survives when its calls are narrowed apart first, vendor kernels all going on."""
    parts = [range(min(cut, len(times))), range(min(cut, len(times)), len(times))]
    survivors: set[int] = set()
    for part in parts:
        local = kept([times[i] for i in part], [p for p, i in enumerate(part) if i in vendors], policy)
        survivors |= {part[p] for p in local} | {i for i in part if i in vendors}
    assert survivors.issuperset(kept(times, tuple(vendors), policy))


CALIBRATION = Calibration(1.0, 1.0, 0.0, 1.0, 0.01, 100)


def together(logs: np.ndarray, policy: Policy, vendor: Sequence[int] = (), **options: Any) -> list[int]:
    """Return which candidates are kept, of which members say ``logs``, shape (E, n)."""
    spread = Spread(np.arange(logs.shape[1]), logs.astype(np.float32), CALIBRATION)
    is_vendor = np.isin(np.arange(logs.shape[1]), list(vendor))
    return list(select(np.exp(logs.mean(0)), is_vendor, policy, spread, **options).indices)


APART = np.array([[0.1, 0.11, -0.05], [-0.1, -0.09, 0.15]])
"""What two members say of three: the second errs as the first does, the third is fast where they are slow."""


def test_those_that_go_together_are_kept() -> None:
    """The third and not the second, unless it is too far behind; alone, the first is what it was."""
    assert together(APART, Policy(2)) == [0, 2]
    assert together(APART, Policy(2), preliminary=True) == [0, 2]
    assert together(APART, Policy(2, 1.02)) == [0, 1]
    assert together(APART, Policy(1)) == [0]
    assert together(APART, Policy(mode=Mode.ZERO)) == [0]


@pytest.mark.parametrize("mode", [Mode.TOP_K, Mode.ADAPTIVE])
def test_no_calibration_is_needed(mode: Mode) -> None:
    """Of a model without one members tell what goes together all the same."""
    spread = Spread(np.arange(3), APART.astype(np.float32), None)
    found = select(np.exp(APART.mean(0)), np.zeros(3, dtype=np.bool_), Policy(2, mode=mode), spread)
    assert (found.indices, found.p_within_2pct) == ((0, 2), None)


def test_the_next_fastest_are_kept_where_that_is_asked_for() -> None:
    """As for a list of the fastest; such a policy is another one."""
    policy = Policy(2, together=False)
    assert together(APART, policy) == [0, 1]
    assert policy.key != Policy(2).key


def test_a_vendor_is_kept_beside_those_that_go_together() -> None:
    """It is timed in any case, as with predictions alone, and is listed where its predicted time is."""
    far = np.concatenate((APART, [[0.4], [0.4]]), 1)
    assert together(far, Policy(2), vendor=[3]) == [0, 2, 3]
    assert together(APART, Policy(2), vendor=[1]) == [0, 1, 2]


def test_members_may_have_scored_some_in_any_order() -> None:
    """What a position means differs in the list, among those within the threshold, and in what members say."""
    predicted = np.array([2.0, 1.05, INF, 1.0, 9.0, 1.01])
    spread = Spread(np.array([5, 1, 3]), APART[:, [1, 2, 0]].astype(np.float32), CALIBRATION)
    found = select(predicted, np.zeros(6, dtype=np.bool_), Policy(2, 3.0), spread)
    assert found.indices == (3, 1)


def test_what_corrections_put_among_the_first_is_kept() -> None:
    """A kernel that was measured, and that not all members scored, is not passed over for what they find."""
    predicted = np.array([1.0, 1.005, 1.01, 1.05])
    spread = Spread(np.array([0, 2, 3]), APART.astype(np.float32), CALIBRATION)
    found = [select(predicted, np.zeros(4, dtype=np.bool_), Policy(k), spread).indices for k in (2, 3)]
    assert found == [(0, 1), (0, 1, 3)]


def test_more_than_are_chosen_together_are_kept_by_rank() -> None:
    """A user who asks for twelve of thirty gets ten that go together and the next two, fastest predicted first."""
    logs = (np.random.default_rng(7).normal(0, 0.1, (6, 30)) + np.arange(30) * 0.01).astype(np.float32)
    by_rank = np.argsort(logs.mean(0)).tolist()
    ten = timed_together(logs, 10, first=by_rank[0])
    expected = {*ten, *[index for index in by_rank if index not in ten][:2]}
    found = together(logs, Policy(12, ANY_RATIO))
    assert set(found) == expected != set(by_rank[:12])
    assert found == [index for index in by_rank if index in expected]


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(2, 40),
    k=st.integers(2, 12),
    vendor=st.integers(0, 40),
    threshold=st.sampled_from([1.1, 1.5, ANY_RATIO]),
)
def test_selecting_twice_keeps_what_goes_together(seed: int, count: int, k: int, vendor: int, threshold: float) -> None:
    """What is kept is kept again where only it is left, the vendor's kernel included."""
    logs, policy = np.random.default_rng(seed).normal(1.0, 0.1, (4, count)), Policy(k, threshold)
    indices = together(logs, policy, vendor=[vendor])
    again = together(logs[:, indices], policy, [place for place, index in enumerate(indices) if index == vendor])
    assert [indices[place] for place in again] == indices
    assert indices == sorted(indices, key=lambda index: logs.mean(0)[index])
    assert len(indices) <= k + 1
    assert vendor >= count or vendor in indices
