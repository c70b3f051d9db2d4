"""How well a model knows a device, by the devices it learned from and by what came of leaving one out."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from diode_store.devices.known import KNOWN_DEVICES
from diode_store.records import Hardware
from diode_trainer.card import Domain
from diode_trainer.covered import CoveredHardware, DeviceCheck, Familiarity, labels

DEVICES = {device.name: device for device in KNOWN_DEVICES}
H200, H100 = DEVICES["NVIDIA H200"], DEVICES["NVIDIA H100 80GB HBM3"]
BOTH = (CoveredHardware.of(H100), CoveredHardware.of(H200))
GOOD = (DeviceCheck(H100.name, 300, 1.012, 1.001, 1.010), DeviceCheck(H200.name, 300, 1.015, 1.002, 1.011))
JOINT = Domain(hardware=BOTH, device_checks=GOOD)
KNOWN, NEAR, UNKNOWN = Familiarity


@pytest.mark.parametrize(
    ("name", "expected", "words"),
    [
        ("NVIDIA H200", KNOWN, "learned from it"),
        ("NVIDIA H100 80GB HBM3", KNOWN, "learned from it"),
        ("NVIDIA GH200 480GB", KNOWN, "within what the model knows, and without NVIDIA H100 80GB HBM3"),
        ("NVIDIA GH200 144G HBM3e", KNOWN, "within what the model knows"),
        ("NVIDIA H100 NVL", NEAR, "max clock 1785 MHz is not 1980 MHz, which the model knows"),
        (
            "NVIDIA H100 PCIe",
            NEAR,
            "number of multiprocessors 114 is not 132 and max clock 1755 MHz is not 1980 MHz and memory",
        ),
        ("NVIDIA H100 PCIe", NEAR, "memory bandwidth 2.04 TB/s is outside 3.35 to 4.8 TB/s, which the model knows"),
        ("NVIDIA H20", NEAR, "number of multiprocessors 78 is not 132, which the model knows"),
        (
            "NVIDIA A10G",
            UNKNOWN,
            "architecture sm_90 (NVIDIA H100 80GB HBM3, NVIDIA H200), not NVIDIA A10G (sm_86,",
        ),
        ("AMD Instinct MI300X", UNKNOWN, "the architecture sm_90"),
    ],
)
def test_a_joint_model_on_each_known_device(name: str, expected: Familiarity, words: str) -> None:
    """Descriptors decide and not names; the reason names the one that is out of range and the range."""
    standing = JOINT.standing(DEVICES[name])
    assert standing.familiarity is expected
    assert words in standing.reason
    assert JOINT.covers(DEVICES[name]) is (expected is KNOWN)


def test_a_device_in_range_is_only_near_without_a_check_that_supports_it() -> None:
    """No check at all, one that failed, or one by too few problems: the trained devices themselves stay known."""
    between, failed = DEVICES["NVIDIA GH200 480GB"], replace(GOOD[1], regret_at_1=1.06)
    for checks, words in (
        ((), "no check leaves out one of NVIDIA H100 80GB HBM3, NVIDIA H200"),
        ((GOOD[0], failed), "without NVIDIA H200 its regret@1 there is 1.0600 on 300 problems (1.0110 with it)"),
        ((replace(GOOD[0], problems=49),), "on 49 problems"),
    ):
        domain = replace(JOINT, device_checks=checks)
        assert domain.standing(between).is_near
        assert f"nothing shows that the model carries over: {words}" in domain.standing(between).reason.replace(
            "without NVIDIA H100 80GB HBM3 its regret@1 there is 1.0120 ", ""
        )
        assert domain.covers(H200)


def test_when_a_check_supports_the_model() -> None:
    """A regret@1 of at most 1.02 does, and a higher one within 1% of a model that saw the device."""
    check = GOOD[0]
    assert replace(check, regret_at_1=1.02).supports
    assert not replace(check, regret_at_1=1.021).supports
    assert replace(check, regret_at_1=1.06, regret_at_1_own=1.055).supports
    assert not replace(check, regret_at_1=1.07, regret_at_1_own=1.055).supports
    assert not replace(check, problems=49).supports


def test_drivers_report_in_their_own_ways() -> None:
    """A bandwidth 2.4% above the highest is in range, one 4% above is not; published figures win."""
    other = replace(H200, name="a card that the table lacks")
    assert JOINT.covers(replace(other, memory_bandwidth_bytes_per_s=4_917_000_000_000))
    too_fast = JOINT.standing(replace(other, memory_bandwidth_bytes_per_s=4_992_000_000_000))
    assert (too_fast.is_near, too_fast.nearest) == (True, "NVIDIA H200")
    assert not JOINT.covers(replace(other, multiprocessors=131))
    throttled = replace(DEVICES["NVIDIA GH200 480GB"], max_clock_mhz=1500, memory_bandwidth_bytes_per_s=None)
    assert JOINT.covers(throttled)


def test_a_descriptor_that_nobody_reports() -> None:
    """The device is near, and the reason names the descriptor."""
    standing = JOINT.standing(replace(H200, name="NVIDIA H800", max_clock_mhz=None))
    assert standing.is_near
    assert standing.reason == (
        "the driver does not report the max clock of NVIDIA H800, and the table of known devices lacks it"
    )
    vague = Domain(hardware=(CoveredHardware("NVIDIA H800", "sm_90", 132),))
    assert vague.standing(H200).reason.startswith("the model does not say the max clock of what it learned from; ")


def test_a_card_of_before_has_only_names() -> None:
    """Its figures come from the table of known devices, so that it is read as a new one."""
    plain = asdict(JOINT)
    for device in plain["hardware"]:
        for name in ("max_clock_mhz", "l2_bytes", "memory_bandwidth_bytes_per_s"):
            del device[name]
    del plain["device_checks"]
    before = Domain.from_plain(plain)
    assert before.device_checks == ()
    for name in ("NVIDIA H200", "NVIDIA H100 PCIe", "NVIDIA GH200 480GB", "NVIDIA L4"):
        assert before.standing(DEVICES[name]) == replace(JOINT, device_checks=()).standing(DEVICES[name])
    assert Domain.from_plain(asdict(JOINT)) == JOINT
    for wrong in ({"multiprocessors": "132"}, {"max_clock_mhz": "fast"}, {"watts": 700}):
        with pytest.raises(TypeError):
            CoveredHardware.from_plain({**asdict(BOTH[0]), **wrong})
    with pytest.raises(ValueError, match="not finite"):
        DeviceCheck.from_plain({**asdict(GOOD[0]), "regret_at_1": float("nan")})


def test_the_nearest_trained_device() -> None:
    """Of several the one with the nearest descriptors; the distance tells between models."""
    small = Hardware("nvidia", "a smaller one", "sm_90", 80, 62_914_560, None, None, 4_000_000_000_000, 1980)
    domain = replace(JOINT, hardware=(*BOTH, CoveredHardware.of(small)))
    near = domain.standing(DEVICES["NVIDIA H20"])
    assert (near.is_near, near.nearest) == (True, "a smaller one")
    assert near.distance < JOINT.standing(DEVICES["NVIDIA H20"]).distance
    assert JOINT.standing(DEVICES["NVIDIA H100 PCIe"]).nearest == "NVIDIA H100 80GB HBM3"


def test_two_devices_of_one_name_are_told_apart() -> None:
    """By architecture and multiprocessors, in reasons and as what a check left out."""
    half = replace(BOTH[0], multiprocessors=66)
    assert labels((BOTH[0], half)) == [
        "NVIDIA H100 80GB HBM3 (sm_90, 132 multiprocessors)",
        "NVIDIA H100 80GB HBM3 (sm_90, 66 multiprocessors)",
    ]
    assert (
        "66 multiprocessors), NVIDIA H100 80GB HBM3 (sm_90, 132"
        in Domain((half, BOTH[0])).standing(DEVICES["NVIDIA L4"]).reason
    )


def test_a_model_of_any_device_knows_all() -> None:
    """A domain that names no hardware leaves none out."""
    assert all(Domain().covers(device) for device in KNOWN_DEVICES)
    assert Domain().learned_from(H200)
