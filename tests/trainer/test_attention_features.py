"""Features of flex attention: which configs fit, and what a model of one op does not rank."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pytest

from diode_collectors.spool.reading import measurements_in
from diode_store.candidates.attention_space import decoded_rows
from diode_store.candidates.columns import GRADIENT_BLOCKS, ConfigColumns
from diode_store.devices.known import known_device
from diode_store.errors import DatasetError
from diode_store.ops import OPS
from diode_store.ops.attending import BACKWARD, DECODING, FORWARD
from diode_store.records import KernelConfig, Outcome, ProblemShape
from diode_store.system.resources import bundled_data_dir
from diode_trainer.attention_features import CONFIG_FEATURES, PROBLEM_FEATURES, AttentionInputs
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.tensors import pack
from diode_trainer.feature_kinds import ATTENTION, PRODUCTS, kind_of

if TYPE_CHECKING:
    from diode_store.records import Measurement

H200 = known_device("NVIDIA H200")
assert H200 is not None


def shape(op: str = FORWARD, m: int = 2048, n: int = 2048, k: int = 64, **dimensions: float | str) -> ProblemShape:
    """Return a problem of attention of 16 heads."""
    named = {"batch": 1, "heads": 16, "full": 1.0, **dimensions}
    return ProblemShape(op, "bfloat16", 16, m, n, k, "nn", tf32=False, dimensions=tuple(sorted(named.items())))


def backward(*blocks: int, stages: int = 3, warps: int = 4) -> KernelConfig:
    """Return a config of gradients with the blocks M1, N1, M2 and N2."""
    kwargs = tuple(sorted(zip(GRADIENT_BLOCKS, blocks, strict=True)))
    return KernelConfig(OPS[BACKWARD].template, num_stages=stages, num_warps=warps, kwargs=kwargs)


@pytest.fixture(scope="module")
def measured() -> list[Measurement]:
    """Return the bundled measurements of attention."""
    found = measurements_in(bundled_data_dir() / "h200-2026-11-attention-convolutions-0000.seg")
    return [m for m in found if OPS[m.problem.op].is_attention]


def test_no_measured_config_is_called_impossible(measured: list[Measurement]) -> None:
    """Of those that ran; most of the others are recognized."""
    refused = {True: 0, False: 0}
    for m in measured:
        timings = list(m.timings)
        inputs = AttentionInputs(m.problem.shape, m.hardware, ConfigColumns.from_configs([t.config for t in timings]))
        assert inputs.configs.shape == (len(CONFIG_FEATURES), len(timings))
        assert inputs.problem.shape == (len(PROBLEM_FEATURES),)
        assert np.isfinite(inputs.configs).all()
        assert np.isfinite(inputs.problem).all()
        for possible, timing in zip(inputs.possible, timings, strict=True):
            assert possible or timing.outcome is not Outcome.OK
            if timing.outcome is Outcome.OUT_OF_RESOURCES:
                refused[bool(possible)] += 1
    assert refused[False] > refused[True]


def test_columns_keep_the_blocks_of_gradients() -> None:
    """Also when they are taken, joined with others, and made configs again."""
    configs = [backward(32, 64, 64, 32), backward(64, 64, 64, 64, stages=1)]
    columns = ConfigColumns.from_configs(configs)
    products = ConfigColumns.from_configs([KernelConfig("triton::mm", block_m=64, num_stages=3, num_warps=4)])
    assert products.gradient_blocks is None
    joined = ConfigColumns.joined([products, columns])
    assert [joined.take(np.array([2, 1])).config(i).kwargs for i in (0, 1)] == [c.kwargs for c in configs[::-1]]
    assert joined.config(0).kwargs == ()
    assert ConfigColumns.from_configs([backward(32, 64, 64, 64)]) != ConfigColumns.from_configs(configs[:1])


def test_more_keys_in_a_window_are_more_iterations() -> None:
    """Empty blocks of a mask count for nothing."""
    columns = ConfigColumns.from_configs(
        [KernelConfig(OPS[FORWARD].template, block_m=64, block_n=64, num_stages=3, num_warps=4)]
    )
    row = CONFIG_FEATURES.index("log_iterations_of_queries")
    full, causal = (
        AttentionInputs(each, H200, columns).configs[row, 0]
        for each in (shape(), shape(mask="causal", full=0.45, partial=0.05))
    )
    assert full == pytest.approx(np.log2(33))
    assert causal == pytest.approx(np.log2(17))


def test_rows_of_decoding_hold_the_heads_that_share_keys() -> None:
    """A block has a power of two of them, and at least 16."""
    assert decoded_rows(shape(DECODING, m=1)) == 16
    assert decoded_rows(shape(DECODING, m=4, heads=16, kv_heads=2)) == 32
    assert decoded_rows(shape(DECODING, m=3, heads=16, kv_heads=2)) == 32


def test_ops_of_one_kind_have_its_features() -> None:
    """Without ops a model is one of matrix products."""
    assert kind_of({FORWARD}) is ATTENTION
    assert kind_of({"mm", FORWARD}) is kind_of(()) is kind_of({"bmm"}) is PRODUCTS


def test_mixed_ops_are_an_error(measured: list[Measurement]) -> None:
    """Without a selection attention is left out; with one that mixes kinds nothing is learned."""
    products = list(islice(measurements_in(bundled_data_dir() / "h200-2026-11-0000.seg"), 4))
    assert {e.shape.op for e in load_measurements([*products, *measured[:4]], "both")} <= {
        m.problem.op for m in products
    }
    with pytest.raises(DatasetError, match=r"no model learns .*flex.* together"):
        pack(load_measurements([*products, *measured[:4]], "both", lambda usable: usable))
