"""What the hook's modes would do on measured problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synthetic import LONG, MM, examples

from diode_store.errors import DatasetError
from diode_store.records import is_vendor_template
from diode_store.system.resources import trained_models_dir
from diode_trainer import artifact
from diode_trainer.card import MATMUL_PURPOSE, Calibration
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.judging.replay import Replay, by_device, by_kind, replay, replay_model
from diode_trainer.policy import Mode, Policy
from diode_trainer.scoring import Prediction
from samples import H100_PCIE

CALIBRATION = Calibration(1.0, 1.0, 0.0, 1.0, 0.003, 100)
SHIPPED = trained_models_dir() / MATMUL_PURPOSE / "v4_model.pt"
MEASURED = examples([20.0, 12.0, 10.0, 40.0])
"""The vendor's kernel and three templates, of which the second is the fastest."""


def predicted(apart: float, *runtime_us: float) -> Prediction:
    """Return what four members predict that are ``apart``, each config by itself."""
    logs = np.log(np.array(runtime_us))
    deviations = np.random.default_rng(0).normal(0, apart, (4, len(runtime_us)))
    members = logs + deviations - deviations.mean(0)
    return Prediction(np.array(runtime_us), np.arange(len(runtime_us)), members.astype(np.float32))


WRONG = (25.0, 10.0, 11.0, 40.0)
"""Predicts the first template to be the fastest, which takes 12 us where the second takes 10."""


def test_zero_mode_takes_the_first_and_times_nothing() -> None:
    """It loses what the first choice loses."""
    (found,) = replay([MEASURED], [predicted(0.1, *WRONG)], CALIBRATION, Policy(mode=Mode.ZERO))
    assert (found.benchmarks, found.loss) == (0, pytest.approx(np.log(1.2)))
    assert found.loss == found.first_loss


def test_top_k_takes_the_fastest_of_those_it_times() -> None:
    """Two templates and the vendor's kernel are timed, and the wrong prediction costs nothing."""
    (found,) = replay([MEASURED], [predicted(0.1, *WRONG)], CALIBRATION, Policy(2))
    assert (found.benchmarks, found.loss) == (3, 0.0)
    assert found.first_loss == pytest.approx(np.log(1.2))


def test_adaptive_mode_times_where_members_disagree() -> None:
    """Sure members keep one alone, unsure ones have several timed, and say that they are less sure."""
    sure, unsure = (
        replay([MEASURED], [predicted(apart, *WRONG)], CALIBRATION, Policy(mode=Mode.ADAPTIVE))[0]
        for apart in (0.001, 0.3)
    )
    assert (sure.benchmarks, unsure.benchmarks > 1) == (0, True)
    assert sure.loss > unsure.loss == 0.0
    assert sure.p_within_2pct is not None
    assert unsure.p_within_2pct is not None
    assert sure.p_within_2pct > 0.9 > unsure.p_within_2pct


def test_what_failed_is_not_chosen() -> None:
    """A config that did not run is no candidate, however fast it is predicted."""
    failing = examples([20.0, np.inf, 10.0, 40.0])
    (found,) = replay([failing], [predicted(0.1, *WRONG)], CALIBRATION, Policy(mode=Mode.ZERO))
    assert (found.loss, found.length) == (0.0, 3)


def test_summary_by_hand() -> None:
    """Means are over problems; the regret is a geometric mean, and one choice of two is within 2%."""
    right = replace(MEASURED, runtime_us=np.array([20.0, 10.0, 12.0, 40.0]))
    both = [MEASURED, right]
    of = Replay.of(replay(both, [predicted(0.001, *WRONG)] * 2, CALIBRATION, Policy(mode=Mode.ZERO)))
    assert (of.problems, of.benchmarks, of.kept_alone, of.seen) == (2, 0.0, 1.0, 0.5)
    assert of.regret.geomean == pytest.approx(np.sqrt(1.2))
    assert of.said is not None
    assert of.to_plain()["regret"]["max"] == pytest.approx(1.2)


def test_kinds_are_of_alignment_and_length() -> None:
    """Odd rows and long lists are counted by themselves; what there is none of is left out."""
    odd = replace(MEASURED, shape=replace(MM, k=MM.k + 1, layout="nn"))
    long = examples([20.0 + i for i in range(200)])
    predictions = [predicted(0.1, *WRONG), predicted(0.1, *(20.0 + i for i in range(200)))]
    kinds = by_kind(replay([odd, long], predictions, CALIBRATION, Policy(mode=Mode.ADAPTIVE)))
    assert {kind: of.problems for kind, of in kinds.items()} == {"whole rows, long lists": 1, "odd rows, samples": 1}


def test_a_model_that_cannot_say_how_sure_it_is() -> None:
    """Without members nothing is said, and adaptive mode does what top-k mode does."""
    alone = Prediction.without_members(np.array(WRONG))
    found = [replay([MEASURED], [alone], None, Policy(mode=mode))[0] for mode in (Mode.ADAPTIVE, Mode.TOP_K)]
    assert found[0] == found[1]
    assert Replay.of(found).said is None


def test_each_device_is_replayed_as_the_hook_treats_it() -> None:
    """A model that is only near to one is less sure there, and is not asked where nothing may be benchmarked."""
    model, count = artifact.load(SHIPPED), len(LONG)
    is_vendor = LONG.template_mask(is_vendor_template)
    of_h200 = replace(
        MEASURED,
        columns=LONG,
        runtime_us=np.linspace(10, 40, count),
        is_vendor=is_vendor,
        is_estimate=np.zeros(count, dtype=np.bool_),
    )
    near = replace(of_h200, hardware=H100_PCIE)
    both = ExampleSet((of_h200, near))
    found = {one.device: one for one in replay_model(model, both, Policy(mode=Mode.ADAPTIVE))}
    assert found.keys() == {"NVIDIA H200", "NVIDIA H100 PCIe"}
    known, of_near = found["NVIDIA H200"], found["NVIDIA H100 PCIe"]
    predictions = [model.predict(each.shape, each.hardware, LONG) for each in (of_h200, near)]
    as_known = replay([of_h200, near], predictions, model.card.calibration, Policy(mode=Mode.ADAPTIVE))
    assert known == as_known[0]
    assert of_near.p_within_2pct is not None
    assert as_known[1].p_within_2pct is not None
    assert of_near.p_within_2pct < as_known[1].p_within_2pct
    assert by_device([known, of_near])["NVIDIA H200"] == Replay.of([known])
    assert by_device([known]) == {}
    assert [one.device for one in replay_model(model, both, Policy(mode=Mode.ZERO))] == ["NVIDIA H200"]
    with pytest.raises(DatasetError, match="outside the model's domain"):
        replay_model(model, ExampleSet((near,)), Policy(mode=Mode.ZERO))


def test_nothing_to_replay() -> None:
    """Without a problem there are no figures."""
    with pytest.raises(DatasetError, match="nothing to judge by"):
        replay_model(artifact.load(SHIPPED), ExampleSet((replace(MEASURED, runtime_us=np.full(4, np.inf)),)), Policy())
    with pytest.raises(DatasetError, match="nothing to judge by"):
        Replay.of(())
