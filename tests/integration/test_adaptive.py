"""Adaptive mode: one candidate where the model is sure, several where benchmarking them is worth it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hooked import benchmarks, compile_op, each_op, each_path, hooked
from test_corrected import compiled_problem, write
from test_predictor import columns, problem

from diode_integration.decide.ranking import Predictor
from diode_trainer.card import Calibration, Card
from diode_trainer.corrections.corrections import Corrections, ProblemOffsets
from diode_trainer.policy import Mode, Policy, Spread, select
from diode_trainer.scoring import Prediction
from stand_ins import DOMAIN, H200, TileModel, card_of

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape

CALIBRATION = Calibration(
    spread=1.0, vendor_spread=1.0, within_offset=0.0, within_slope=1.0, kernel_price=0.005, problems=100
)
CARD = replace(card_of(), calibration=CALIBRATION)
SURE, UNSURE = 0.0001, 0.1


@dataclass
class MembersModel(TileModel):
    """Four members that predict what the tile says, apart by ``disagreement`` in another way for every config."""

    card: Card = field(default_factory=lambda: CARD)
    disagreement: float = SURE

    def predict(self, shape: ProblemShape, device: Hardware, columns: ConfigColumns) -> Prediction:
        """Return microseconds and what the members predict for all of them."""
        runtime_us = self.predict_us(shape, device, columns)
        apart = np.random.default_rng(0).normal(size=(4, len(columns))) * self.disagreement
        logs = np.log(runtime_us) + apart - apart.mean(0)
        return Prediction(runtime_us, np.arange(len(columns)), logs.astype(np.float32))


def is_vendor(name: str) -> bool:
    """Return whether a choice of that name is the vendor's."""
    return not name.startswith("triton")


@each_op
@each_path
def test_nothing_is_benchmarked_where_the_members_agree(op: str, deferred: bool) -> None:  # noqa: FBT001 - a parameter of pytest's
    """Sure of the vendor's kernel, the hook leaves it alone, in however many calls the op was listed."""
    watch = compile_op(op, hooked(MembersModel(), mode="adaptive"), deferred=deferred)
    assert [len(left) for left in watch.left] == [1]
    assert is_vendor(watch.left[0][0])
    assert (watch.timed, benchmarks()) == ([], 0)


def test_sure_template_is_left_alone() -> None:
    """Sure of a template that leads, the hook leaves it without the vendor's kernel."""
    model = MembersModel(vendor_us=50.0)
    model.favourite = (64, 64, 32)
    watch = compile_op("mm", hooked(model, mode="adaptive", kernel_price=0.02), run_vendor=True)
    assert watch.left == [["triton 64x64x32 s3 w4"]]
    assert watch.timed == []


@pytest.mark.quick(2)
@each_op
@each_path
def test_several_are_benchmarked_where_the_members_disagree(op: str, deferred: bool) -> None:  # noqa: FBT001 - a parameter of pytest's
    """Unsure, the hook leaves several, the vendor's kernel among them, and Inductor times exactly those."""
    handler = hooked(MembersModel(vendor_us=19.0, disagreement=UNSURE), mode="adaptive")
    watch = compile_op(op, handler, deferred=deferred)
    (left,) = watch.left
    assert len(left) > 2
    assert [is_vendor(name) for name in left].count(True) == 1
    assert sorted(watch.timed) == sorted(left)
    (decision,) = handler.decisions()
    assert len(decision.chosen) == len(left)


class TwoKindsModel(MembersModel):
    """Where a member takes kernels of 64 rows to be slower than all members do, it takes the others to be faster."""

    def predict(self, shape: ProblemShape, device: Hardware, columns: ConfigColumns) -> Prediction:
        """Return microseconds and what the members predict for all of them."""
        runtime_us = self.predict_us(shape, device, columns)
        apart = np.array([[1.0], [-1.0]]) * np.where(columns.block_m == 64, UNSURE, -UNSURE)
        return Prediction(runtime_us, np.arange(len(columns)), (np.log(runtime_us) + apart).astype(np.float32))


@pytest.mark.quick(2)
@each_op
@each_path
def test_top_k_leaves_what_goes_together(op: str, deferred: bool) -> None:  # noqa: FBT001 - a parameter of pytest's
    """However many calls list an op, what is timed is of both kinds, where the three fastest are of one."""
    rows = []
    for model in (TileModel(vendor_us=30.0), TwoKindsModel(vendor_us=30.0)):
        watch = compile_op(op, hooked(model, mode="top_k", performance_threshold=1.2), deferred=deferred)
        (left,) = watch.left
        assert sorted(watch.timed) == sorted(left)
        assert [is_vendor(name) for name in left] == [False, False, False, True]
        rows.append({name.split()[1].partition("x")[0] for name in left[:3]})
    assert rows[0] == {"64"} < rows[1]


def test_a_higher_price_benchmarks_fewer() -> None:
    """The price of a kernel decides how many are worth it."""
    left = [
        len(
            compile_op("mm", hooked(MembersModel(19.0, disagreement=UNSURE), mode="adaptive", kernel_price=price)).left[
                0
            ]
        )
        for price in (0.001, 0.01, 1.0)
    ]
    assert left[0] > left[1] > left[2] == 1


def test_statistics_say_how_many_were_kept() -> None:
    """``configs_kept`` counts what was left, ``kept_alone`` the ops of which one was: nothing was benchmarked."""
    sure = hooked(MembersModel(), mode="adaptive")
    compile_op("mm", sure)
    unsure = hooked(MembersModel(vendor_us=19.0, disagreement=UNSURE), mode="adaptive")
    watch = compile_op("mm", unsure)
    counts = [[handler.get_stats()[name] for name in ("configs_kept", "kept_alone")] for handler in (sure, unsure)]
    assert counts == [[1, 1], [len(watch.left[0]), 0]]


def test_decision_says_how_sure_the_model_is() -> None:
    """A decision carries the probability that its first choice is within 2% of the best, and tells it."""
    handler = hooked(MembersModel(), mode="adaptive")
    compile_op("mm", handler)
    (decision,) = handler.decisions()
    assert decision.p_within_2pct is not None
    assert decision.p_within_2pct > 0.99
    expected = "the vendor's kernel is predicted fastest, 100% sure to be within 2% of the best; it is kept alone"
    assert decision.reason == expected


@pytest.mark.quick(1)
@each_op
def test_what_is_left_out_counts_for_how_sure_it_is(op: str) -> None:
    """However few candidates a mode leaves, its first choice is within 2% of the best of all as likely."""
    said = set()
    for mode in Mode:
        for observe in (False, True):
            handler = hooked(MembersModel(vendor_us=19.9, disagreement=0.02), mode=mode, observe=observe)
            compile_op(op, handler)
            (decision,) = handler.decisions()
            said.add(decision.p_within_2pct)
    (probability,) = said
    assert probability is not None
    assert 0.2 < probability < 0.8


def test_sureness_of_a_first_choice_that_is_gone_is_forgotten() -> None:
    """What it said was of another candidate."""
    logs = np.log([[10.0, 11.0, 12.0], [10.1, 11.1, 12.1]]).astype(np.float32)
    spread, is_vendor = Spread(np.arange(3), logs, CALIBRATION), np.zeros(3, dtype=np.bool_)
    left = [spread.left(positions, is_vendor) for positions in ([0, 2], [1, 2])]
    assert [among and among.p_within_2pct for among in left] == [spread.outlook(is_vendor).p_within_2pct, None]


@pytest.mark.parametrize("mode", ["top_k", "zero"])
def test_other_modes_choose_the_same_with_a_calibration(mode: str) -> None:
    """Only adaptive mode asks the members; the others merely say how sure they are."""
    plain, asked = hooked(TileModel(vendor_us=20.5), mode=mode), hooked(MembersModel(vendor_us=20.5), mode=mode)
    kept = [compile_op("mm", handler, run_vendor=True).left for handler in (plain, asked)]
    assert kept[0] == kept[1]
    assert [handler.decisions()[0].p_within_2pct is None for handler in (plain, asked)] == [True, False]


@pytest.mark.parametrize("model", [TileModel(20.5), MembersModel(20.5, card=card_of())], ids=["no members", "no card"])
def test_uncalibrated_model_keeps_what_top_k_does(model: TileModel, caplog: pytest.LogCaptureFixture) -> None:
    """A model that does not say how sure it is gets top-k mode, and the log says so once, with the remedy."""
    with caplog.at_level(logging.INFO, "diode_integration"):
        handler = hooked(model, mode="adaptive", top_k_configs=2)
        left = [compile_op(op, handler).left for op in ("mm", "bmm")]
    assert left[0] == compile_op("mm", hooked(model, top_k_configs=2)).left
    assert [len(names) for (names,) in left] == [3, 3]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "diode_integration"]
    assert line.startswith("the model does not say how sure it is, so adaptive mode keeps 2 candidates like top_k mode")
    assert line.endswith("train one of several members with `diode-train --folds 5`")


@pytest.mark.parametrize(
    ("options", "sure", "unsure"),
    [
        ({}, Mode.ADAPTIVE, Mode.TOP_K),
        ({"top_k_configs": 3}, Mode.TOP_K, Mode.TOP_K),
        ({"performance_threshold": 1.1}, Mode.TOP_K, Mode.TOP_K),
        ({"kernel_price": 0.01}, Mode.ADAPTIVE, Mode.ADAPTIVE),
        ({"mode": "zero"}, Mode.ZERO, Mode.ZERO),
        ({"mode": "adaptive", "top_k_configs": 3}, Mode.ADAPTIVE, Mode.ADAPTIVE),
    ],
    ids=str,
)
def test_mode_without_being_named(options: dict[str, Any], sure: Mode, unsure: Mode) -> None:
    """Adaptive for a model that knows how sure it is; an option of another mode asks for that mode."""
    assert hooked(MembersModel(vendor_us=20.5), **options).policy.mode is sure
    assert hooked(TileModel(vendor_us=20.5), **options).policy.mode is unsure


def test_a_mode_that_nobody_asked_for_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """A model that does not know how sure it is keeps three, and the log says nothing."""
    with caplog.at_level(logging.INFO, "diode_integration"):
        handler = hooked(TileModel(vendor_us=20.5))
    assert (handler.policy.mode, handler.policy.top_k_configs, handler.policy.performance_threshold) == (
        "top_k",
        3,
        1.1,
    )
    assert not caplog.records


def test_candidates_of_unknown_templates_are_dropped_when_one_is_kept_alone() -> None:
    """What the model does not know stays, unless nothing is to be timed."""
    domain = replace(DOMAIN, templates=("aten::mm",))
    watch = compile_op("mm", hooked(MembersModel(card=replace(CARD, domain=domain)), mode="adaptive"))
    assert watch.left == [["mm"]]


def test_observing_leaves_stock_inductors_list() -> None:
    """With ``observe`` the decision is recorded, and stock Inductor's choices stay."""
    handler = hooked(MembersModel(), mode="adaptive", observe=True)
    watch = compile_op("mm", handler)
    assert len(watch.left[0]) > 10
    assert [len(decision.chosen) for decision in handler.decisions()] == [1]
    assert handler.get_stats()["kept_alone"] == 0


def test_price_is_part_of_the_cache_key() -> None:
    """Handlers of another price, or of another mode, have other keys; the price means nothing in other modes."""
    handlers = [
        hooked(mode="adaptive"),
        hooked(mode="adaptive", kernel_price=0.01),
        hooked(mode="top_k"),
        hooked(mode="top_k", kernel_price=0.01),
    ]
    keys = [handler.uuid() for handler in handlers]
    assert (len(set(keys)), keys[2]) == (3, keys[3])


def test_predictor_gives_the_probability_of_being_within_2_percent() -> None:
    """A ranking by a calibrated model says how likely its first is good; by another it says nothing."""
    rankings = [
        Predictor(model).rank(problem(), H200, columns())
        for model in (MembersModel(), MembersModel(19.9, disagreement=UNSURE), TileModel())
    ]
    sure, unsure, unknown = (ranking.p_within_2pct for ranking in rankings)
    assert sure is not None
    assert unsure is not None
    assert unknown is None
    assert 0 < unsure < sure <= 1


class FewFinalists(MembersModel):
    """Has its members score the best two alone."""

    def predict(self, shape: ProblemShape, device: Hardware, columns: ConfigColumns) -> Prediction:
        """Return what they say of these."""
        full = super().predict(shape, device, columns)
        best = np.sort(np.argsort(full.runtime_us, kind="stable")[:2])
        return Prediction(full.runtime_us, best, full.member_logs[:, best])


def test_members_are_not_asked_of_a_best_that_they_have_not_scored() -> None:
    """Where corrections put another candidate first, adaptive mode keeps that one, as top-k mode does."""
    offsets = ProblemOffsets(0.0, {}, {("triton::mm", 32, 64, 32, 8, 3, 4, False): -1.0})
    corrections = Corrections("a" * 64, {((H200.name, H200.arch, H200.multiprocessors), problem().shape): offsets})
    tiles = columns(*(("triton::mm", m, 64, 32, 8, 3, 4, False) for m in (32, 64, 128)), ("aten::mm", *[0] * 6, False))
    rankings = [
        Predictor(FewFinalists(), corrections=known).rank(problem(), H200, tiles) for known in (None, corrections)
    ]
    kept = [select(r.predicted_us, r.is_vendor, Policy(mode=Mode.ADAPTIVE), r.spread).indices[0] for r in rankings]
    assert kept == [3, 0]


@each_op
def test_corrections_decide_in_however_many_calls_an_op_was_listed(op: str, tmp_path: Path) -> None:
    """What they put first is kept, also where the vendor's kernels were listed alone, and all members know those."""
    tile = ("triton::bmm" if op == "bmm" else "triton::mm", 32, 64, 32, 8, 3, 4, False)
    offsets = ProblemOffsets(0.0, {}, {tile: -1.5})
    path = write(tmp_path / "c.json", compiled_problem(op), offsets)
    handler = hooked(FewFinalists(), mode="adaptive", corrections=path)
    (left,) = compile_op(op, handler, run_vendor=True).left
    assert left[0] == "triton 32x64x32 s3 w4"
    assert [is_vendor(name) for name in left].count(True) == 1


def test_what_is_kept_may_lie_in_several_lists() -> None:
    """Lists end to end are one: the positions of the second follow those of the first."""
    logs = np.log([[10.0, 20.0], [10.1, 20.1]]).astype(np.float32)
    first, second = Spread(np.array([1, 2]), logs, CALIBRATION), Spread(np.array([0, 3]), logs, CALIBRATION)
    joined = Spread.joined([(0, first), (5, second)])
    assert (joined.indices.tolist(), joined.member_logs.shape) == ([1, 2, 5, 8], (2, 4))
    among = joined.among([8, 0, 2])
    assert among is not None
    assert among.indices.tolist() == [2, 0]
    assert joined.among([0, 7]) is None


def test_preliminary_selection_keeps_at_least_what_the_final_one_does() -> None:
    """Before all candidates are known, one alone may still have to be benchmarked: nothing is dropped too early."""
    generator = np.random.default_rng(1)
    is_vendor = np.arange(40) == 3
    for _ in range(50):
        logs = (np.sort(generator.uniform(2, 2.3, 40)) + generator.normal(0, 0.05, (6, 40))).astype(np.float32)
        spread = Spread(np.arange(40), logs, CALIBRATION)
        policy = Policy(mode=Mode.ADAPTIVE)
        predicted = np.exp(logs.mean(0).astype(np.float64))
        early, final = (select(predicted, is_vendor, policy, spread, preliminary=early) for early in (True, False))
        assert set(final.indices) <= set(early.indices)
        assert not early.indices or early.indices[0] == final.indices[0]
