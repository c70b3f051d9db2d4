"""Which kernels take long to compile, and what the choice makes of that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from synthetic import MM

from diode_store.candidates.columns import ConfigColumns
from diode_store.records import ProblemShape
from diode_trainer.card import Calibration
from diode_trainer.launch import MOST_SECONDS, compile_seconds, takes_too_long
from diode_trainer.policy import Mode, Policy, Spread, select
from diode_trainer.uncertainty import Outlook

FP32 = ProblemShape("mm", "float32", 1, 2048, 256, 512, "nt")
CALIBRATION = Calibration(1.0, 1.0, 0.0, 1.0, 0.01, 100)


def columns(*tiles: tuple[int, int, int, int], allow_tf32: bool = False) -> ConfigColumns:
    """Return the vendor's kernel and a template with each of the tiles and numbers of warps."""
    rows = [("triton::mm", m, n, k, 8, 3, warps, allow_tf32) for m, n, k, warps in tiles]
    return ConfigColumns.from_rows([("aten::mm", 0, 0, 0, 0, 0, 0, False), *rows])


def test_fp32_takes_as_long_as_a_thread_has_products() -> None:
    """Twice the tile takes twice as long, twice the warps half; the vendor's kernel is there already."""
    seconds = compile_seconds(FP32, columns((64, 64, 32, 4), (128, 64, 32, 4), (128, 64, 32, 8)))
    assert seconds is not None
    vendor, one, twice, warps = seconds.tolist()
    assert (vendor, one) == (0.0, warps)
    assert twice > 1.8 * one


def test_with_tensor_cores_nothing_is_counted() -> None:
    """TF32 and half precision compile within about a second."""
    assert compile_seconds(MM, columns((256, 256, 64, 2))) is None
    seconds = compile_seconds(FP32, columns((256, 256, 64, 2), allow_tf32=True))
    assert seconds is not None
    assert seconds.tolist() == [0.0, 0.0]


def test_what_takes_too_long_is_left_out() -> None:
    """A tile of which a thread has thousands of products takes longer than is allowed, a usual one does not."""
    seconds = compile_seconds(FP32, columns((64, 64, 32, 4), (128, 256, 64, 8)))
    assert seconds is not None
    assert takes_too_long(seconds, np.ones(3)).tolist() == [False, False, True]
    assert seconds[1] < MOST_SECONDS < seconds[2]


def test_something_is_always_left() -> None:
    """Where nothing else can run, it is kept however long it takes."""
    seconds = np.array([0.0, 9.0], dtype=np.float32)
    assert takes_too_long(seconds, np.array([np.inf, 1.0])).tolist() == [False, False]


def test_what_takes_long_has_to_gain_more() -> None:
    """Among members that disagree, fewer slow kernels than quick ones are worth timing; the vendor's is always one."""
    generator = np.random.default_rng(0)
    logs = (np.linspace(0, 0.02, 8) + generator.normal(0, 0.05, (6, 8))).astype(np.float32)
    is_vendor = np.arange(8) == 4
    outlook = Outlook(logs, is_vendor, CALIBRATION)
    quick, slow = (
        outlook.worth_timing(compile_s=np.where(is_vendor, 0, seconds).astype(np.float32)) for seconds in (0.3, 2.9)
    )
    assert outlook.worth_timing() == quick
    assert 4 in quick
    assert len(slow) < len(quick)


def test_policy_and_spread_carry_the_seconds() -> None:
    """Joined spreads and parts of them keep what each candidate takes to compile; the policy goes by it."""
    logs = np.log(np.array([[10.0, 10.2, 10.4], [10.3, 10.0, 10.1]], dtype=np.float32))
    slow = Spread(np.arange(3), logs, CALIBRATION, compile_s=np.array([2.0, 2.5, 2.75], dtype=np.float32))
    vendor = Spread(np.arange(1), logs[:, :1] + 0.01, CALIBRATION)
    joined = Spread.joined([(0, slow), (3, vendor)])
    assert joined.compile_s is not None
    assert joined.compile_s.tolist() == [2.0, 2.5, 2.75, 0.0]
    part = joined.among([3, 1])
    assert part is not None
    assert part.compile_s is not None
    assert part.compile_s.tolist() == [2.5, 0.0]
    predicted = np.exp(joined.member_logs.mean(0, dtype=np.float64))
    quick = replace(joined, compile_s=None)
    kept = [
        len(select(predicted, np.arange(4) == 3, Policy(mode=Mode.ADAPTIVE, kernel_price=0.002), spread).indices)
        for spread in (joined, quick)
    ]
    assert kept[0] < kept[1]
