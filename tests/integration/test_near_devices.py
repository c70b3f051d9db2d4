"""A device that a model is only near to: it is asked with a wider margin, and never alone in zero mode."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hooked import compile_op
from test_model_set import A10G, H100, OF_H100, known, model, problem

from diode_integration.choices import DiodeInductorChoices
from diode_integration.decide import notices
from diode_integration.decide.decision import DecidedBy
from diode_integration.decide.models import ModelSet
from diode_integration.hook_checks import hook_finding
from diode_store.command_line.diagnosis import Level
from diode_store.devices.known import require_device
from diode_trainer.card import Calibration
from diode_trainer.covered import CoveredHardware, DeviceCheck
from diode_trainer.op_domain import OpDomain
from diode_trainer.policy import Mode, Policy, Spread
from stand_ins import DOMAIN, H200, AbstainedError, abstention, asked_about, card_of

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import SaveModel
    from diode_integration.decide.decision import Decision
    from diode_store.records import Hardware

GH200, PCIE = require_device("NVIDIA GH200 480GB"), require_device("NVIDIA H100 PCIe")
CHECKS = tuple(DeviceCheck(device.name, 300, 1.01, 1.001, 1.01) for device in (H100, H200))
OF_BOTH = replace(DOMAIN, hardware=tuple(map(CoveredHardware.of, (H100, H200))), device_checks=CHECKS)
FAST_TEMPLATES: dict[str, Any] = {"vendor_us": 30.0}
WHY = "L2 cache 50 MiB is not 60 MiB and memory bandwidth 3.35 TB/s is not 4.8 TB/s, which the model knows"


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin as a new process does: with nothing logged."""
    monkeypatch.setattr(notices, "_said", defaultdict(threading.Lock))


def decision_of(hardware: Hardware = H100, domain: Any = DOMAIN, **options: Any) -> tuple[Decision, int]:
    """Compile one mm as if on a device; return what was decided, and how many candidates were left."""
    handler = DiodeInductorChoices(model=known(model("2", domain, **FAST_TEMPLATES)), hardware=hardware, **options)
    watch = compile_op("mm", handler, run_vendor=True)
    (decision,) = handler.decisions()
    return decision, len(watch.left[0])


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the user saw."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("mode", [None, "adaptive", "top_k"])
def test_without_a_calibration_benchmarks_decide(mode: str | None) -> None:
    """Three candidates and the vendor's are kept, however far one is ahead; the reason says by whom."""
    decision, left = decision_of(mode=mode)
    assert (decision.decided_by, left) == (DecidedBy.MODEL, 4)
    assert decision.reason.endswith("kept; the vendor's kernel is kept too; by a model of NVIDIA H200")
    assert decision.p_within_2pct is None
    assert decision.policy is not None
    assert decision.policy.mode == "top_k"


def test_it_is_announced_once_with_the_descriptor(caplog: pytest.LogCaptureFixture) -> None:
    """One line names what is out of range, the range, and what to do; a second product says nothing."""
    models = ModelSet(known(model("2")))
    for _ in range(2):
        asked_about(models, problem(), H100)
    (line,) = warnings_in(caplog)
    assert line == (
        f"no model knows NVIDIA H100 80GB HBM3, but one is near: {WHY}; models of NVIDIA H200 rank its kernels, and"
        " the hook benchmarks more of them than usual (zero mode keeps the vendor kernel). `diode tune` trains a model"
        " for it (see `diode tune --help`) (logged once)"
    )


def test_a_calibrated_model_is_asked_as_if_it_were_less_sure() -> None:
    """Adaptive mode goes on with a calibration of twice the spread; the other modes let benchmarks decide."""
    calibration = Calibration(0.7, 2.5, 0.4, 0.6, 0.006, 1208)
    assert calibration.widened(2.0) == replace(calibration, spread=1.4, vendor_spread=5.0)
    spread = Spread(np.arange(2), np.zeros((2, 2), np.float32), calibration)
    adaptive, few = Policy(mode=Mode.ADAPTIVE), Policy(top_k_configs=1)
    assert adaptive.near(spread) is adaptive
    assert adaptive.near(None) == adaptive.benchmarking
    assert adaptive.near(replace(spread, calibration=None)).mode is Mode.TOP_K
    assert (few.near(spread).top_k_configs, few.near(spread).performance_threshold) == (2, 1e9)


def test_benchmarks_decide_even_where_the_vendors_is_far_ahead() -> None:
    """A template is kept beside it, and so it is where only one candidate is asked for."""
    for options in ({}, {"top_k_configs": 1}):
        handler = DiodeInductorChoices(model=known(model("2")), hardware=H100, **options)
        watch = compile_op("mm", handler, run_vendor=True)
        (decision,) = handler.decisions()
        kept = [choice.config.is_vendor for choice in decision.chosen]
        assert kept == [True] + [False] * (len(watch.left[0]) - 1)
        assert len(kept) == (2 if options else 3)


def test_zero_mode_keeps_the_vendors_kernel() -> None:
    """Nothing may be benchmarked there, so the model is not asked; on a known device it decides alone."""
    decision, left = decision_of(mode="zero")
    assert (decision.decided_by, left) == (DecidedBy.VENDOR, 1)
    assert decision.reason.startswith(f"hardware: {WHY}")
    for device in (H100, H200, GH200):
        decision, left = decision_of(device, OF_BOTH, mode="zero")
        assert (decision.decided_by, left) == (DecidedBy.MODEL, 1), device.name
        assert "by a model of" not in decision.reason
    assert decision_of(PCIE, OF_BOTH, mode="zero")[0].decided_by is DecidedBy.VENDOR


def test_a_device_may_be_near_for_one_op_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A model learned mm from two devices and bmm from one: on the other bmm is near, and zero mode abstains."""
    of_bmm = OpDomain((CoveredHardware.of(H200),), DOMAIN.dtypes, DOMAIN.layouts, {}, DOMAIN.shapes)
    models = ModelSet(known(model("2", replace(OF_BOTH, of_ops={"bmm": of_bmm}))))
    asked_about(models, problem("mm"), H100)
    asked_about(models, problem("bmm"), H200)
    assert warnings_in(caplog) == []
    asked_about(models, problem("bmm"), H100)
    (line,) = warnings_in(caplog)
    assert line.startswith(
        f"no model knows bmm on NVIDIA H100 80GB HBM3, but one is near: {WHY}; models of NVIDIA H200"
    )
    said = abstention(models, problem("bmm"), H100, may_benchmark=False)
    assert said.startswith(f"hardware: bmm on NVIDIA H100 80GB HBM3: {WHY}; the model is not sure enough")


def test_a_near_model_of_an_op_is_asked_where_the_known_ones_lack_it() -> None:
    """A model of this device without the op does not keep one of a similar device from being asked."""
    models = ModelSet(known(model("1", replace(OF_H100, ops=("mm",))), model("2")))
    assert asked_about(models, problem("mm"), H100).model.sha256 == "1" * 64
    assert asked_about(models, problem("bmm"), H100).model.sha256 == "2" * 64


def test_doctor_tells_near_ops_from_known_ones() -> None:
    """It names the dtypes of the known ops alone."""
    of_bmm = OpDomain((CoveredHardware.of(H200),), ("float8_e4m3fn",), DOMAIN.layouts, {}, DOMAIN.shapes)
    card = card_of(replace(OF_BOTH, of_ops={"bmm": of_bmm}))
    there, here = hook_finding([card], H200).text, hook_finding([card], H100).text
    assert "float8_e4m3fn" in there
    assert "wider margin" not in there
    assert "float8_e4m3fn" not in here
    assert here.endswith("; it ranks those of bmm with a wider margin")


def test_another_architecture_is_unknown() -> None:
    """The hook abstains, and the reason names both architectures."""
    decision, _ = decision_of(A10G)
    assert decision.abstained
    assert "the model knows the architecture sm_90 (NVIDIA H200), not NVIDIA A10G (sm_86," in decision.reason


def test_a_model_that_knows_the_device_is_asked_first() -> None:
    """Near models only where none knows the device, the nearest first; outside the domain they abstain as ever."""
    models = ModelSet(known(model("2"), model("1", OF_H100)))
    assert asked_about(models, problem(), H100).model.sha256 == "1" * 64
    assert asked_about(models, problem(), PCIE).model.sha256 == "1" * 64
    assert asked_about(models, problem(), replace(H200, name="another", multiprocessors=130)).model.sha256 == "2" * 64
    with pytest.raises(AbstainedError, match=r"^shape: "):
        asked_about(ModelSet(known(model("2"))), problem(size=8192), H100)


def test_the_cache_key_tells_near_from_known() -> None:
    """Two records of one device that differ in a descriptor alone do not share what Inductor cached."""
    named = replace(H200, name="NVIDIA H200X")
    slower = replace(named, memory_bandwidth_bytes_per_s=2_000_000_000_000)
    ours = known(model("2", OF_BOTH))
    keys = {DiodeInductorChoices(model=ours, hardware=device).uuid() for device in (named, slower)}
    assert sorted(key.rpartition("/")[2] for key in keys) == ["known", "near"]


def test_the_import_tells_the_same_story(
    save_model: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the driver's name: nothing of a known GPU, one line of a near one, nothing of one without figures."""
    save_model("v1", domain=OF_BOTH)
    folder = tmp_path / "gpus" / "0"
    folder.mkdir(parents=True)
    monkeypatch.setattr(notices, "_NVIDIA", tmp_path / "gpus")

    def said_on(name: str) -> list[str]:
        caplog.clear()
        (folder / "information").write_text(f"Model: \t\t {name}\n")
        for _ in range(2):
            notices.say_at_import()
        return warnings_in(caplog)

    for name in (H100.name, H200.name, GH200.name, "NVIDIA H800"):
        assert said_on(name) == [], name
    (line,) = said_on(PCIE.name)
    assert line.startswith("no model knows NVIDIA H100 PCIe, but one is near: number of multiprocessors 114 is not 132")
    asked_about(ModelSet(known(model("2", OF_BOTH))), problem(), PCIE)
    assert len(warnings_in(caplog)) == 1


def test_diode_doctor_tells_the_same_story() -> None:
    """A known GPU is fine, a near one a warning with the descriptor, another one a warning that it abstains."""
    cards = [card_of(OF_BOTH)]
    assert hook_finding(cards, GH200).level is Level.OK
    near = hook_finding(cards, PCIE)
    assert near.level is Level.WARNING
    assert near.text.startswith(
        "stand-in ranks the kernels of NVIDIA H100 PCIe with a wider margin (zero mode keeps the vendor kernel):"
        " number of multiprocessors 114 is not 132 and"
    )
    assert "`diode tune`" in str(near.remedy)
    assert "would abstain: " in hook_finding(cards, A10G).text
