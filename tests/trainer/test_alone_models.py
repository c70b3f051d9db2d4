"""The shipped models of attention and of convolutions, each of one op of one device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from diode_collectors.problems.problem import parse_problem
from diode_collectors.spool.reading import measurements_in
from diode_store.candidates.columns import ConfigColumns
from diode_store.devices.known import known_device
from diode_store.system.resources import bundled_data_dir, trained_models_dir
from diode_trainer.artifact import TimingModel, load
from diode_trainer.data.dataset import LEARNED_ALONE
from diode_trainer.data.from_file import load_measurements
from diode_trainer.feature_kinds import kind_of

if TYPE_CHECKING:
    from diode_store.records import Measurement

H200 = known_device("NVIDIA H200")
assert H200 is not None
KNOWN = {
    "convolution": "convolution:8x64x56x56:128x3x3/padding1",
    "flex_attention": "flex_attention:4x16x2048x64:4x2048/causal",
    "flex_attention_backward": "flex_attention_backward:4x16x2048x64:4x2048/causal",
    "flex_decoding": "flex_decoding:8x32x1x128:8x8192",
}
UNKNOWN = {
    "convolution:8x64x56x56:128x3x3/dilation2": "of convolution the model knows none with a dilation",
    "convolution:8x64x4096:128x3/nt": "of convolution the model knows the number of spatial sizes 2, not 1",
    "convolution:8x64x56x56:128x3x3/tt": "of convolution the model knows nt, not tt",
    "convolution:8x64x56x56:128x3x3/tf32": "of convolution the model knows bfloat16, float16, not tf32",
}


@pytest.fixture(scope="module")
def measured() -> list[Measurement]:
    """Return the bundled measurements of attention and convolutions."""
    return list(measurements_in(bundled_data_dir() / "h200-2026-11-attention-convolutions-0000.seg"))


@pytest.fixture(scope="module", params=LEARNED_ALONE)
def shipped(request: pytest.FixtureRequest) -> TimingModel:
    """Return each shipped model."""
    return load(trained_models_dir() / kind_of({request.param}).purpose / f"{request.param}_v1.pt")


def test_it_ranks_what_was_measured(shipped: TimingModel, measured: list[Measurement]) -> None:
    """On its own data: no proof of quality, but of the right columns in the right order."""
    logs = []
    for m in measured:
        if shipped.can_rank(m.problem.shape):
            timings = [t for t in m.timings if t.runtime_us]
            columns = ConfigColumns.from_configs([t.config for t in timings])
            times = np.array([t.runtime_us for t in timings])
            logs.append(np.log(times[shipped.predict_us(m.problem.shape, m.hardware, columns).argmin()] / times.min()))
    assert len(logs) == shipped.card.data["problems"]
    assert np.exp(np.mean(logs)) < 1.02


def test_its_domain_is_that_of_its_data(shipped: TimingModel, measured: list[Measurement]) -> None:
    """So a change to what a domain is needs new models."""
    own = [m for m in measured if m.problem.op in shipped.card.ops]
    found = load_measurements(own, "the bundled measurements", lambda usable: usable).domain()
    assert found == shipped.card.domain


def test_it_knows_one_op_of_one_device(shipped: TimingModel) -> None:
    """The card has the figures of families that it had not seen, and the command that makes it."""
    card = shipped.card
    (op,) = card.ops
    kind = kind_of({op})
    assert (card.purpose, card.feature_version, card.name) == (kind.purpose, kind.version, f"{op}_v1")
    assert card.metrics["split"] == "family"
    assert f"--op {op} " in card.command
    for each, text in KNOWN.items():
        shape = parse_problem(text).problem().shape
        missed = next(card.domain.misses(shape, H200), None)
        assert (None if missed is None else missed.reason) == (None if each == op else "op")
        assert shipped.can_rank(shape) is (each == op)


@pytest.mark.parametrize("text", UNKNOWN)
def test_convolutions_that_no_model_knows(text: str) -> None:
    """The reason names what the data has."""
    card = load(trained_models_dir() / kind_of({"convolution"}).purpose / "convolution_v1.pt").card
    shape = parse_problem(text).problem().shape
    assert UNKNOWN[text] in [miss.detail for miss in card.domain.misses(shape, H200)]
