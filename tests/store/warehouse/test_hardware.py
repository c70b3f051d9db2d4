from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

import samples
from decided import decision
from diode_store.devices.known import (
    BUILTIN_ALIASES,
    KNOWN_DEVICES,
    find_device,
    known_device,
    known_devices,
    split_names,
    with_known_attributes,
)
from diode_store.errors import HardwareError
from diode_store.records import Hardware
from diode_store.warehouse import hardware, schema
from diode_store.warehouse.database import write_transaction

if TYPE_CHECKING:
    from diode_store.warehouse.store import Store

SEVERAL = [
    samples.H200,
    samples.H100,
    samples.H100_PCIE,
    Hardware("nvidia", "NVIDIA H1000", "sm_95", 200),
    Hardware("nvidia", "NVIDIA A100-SXM4-80GB", "sm_80", 108),
    Hardware("nvidia", "NVIDIA A100-SXM4-40GB", "sm_80", 108),
]


def names(text: str, *, all_matches: bool = False, aliases: dict[str, set[str]] | None = None) -> list[str]:
    """Return what ``text`` means among several devices."""
    return [row.name for row in hardware.match_hardware(SEVERAL, text, all_matches, aliases)]


def fill(store: Store, *devices: Hardware) -> None:
    """Measure something on each device."""
    store.write([samples.measurement(number, hardware=device) for number, device in enumerate(devices)])


@pytest.mark.parametrize("text", ["NVIDIA H200", "nvidia h200", "  NVIDIA H200 ", "h200", "H200"])
def test_name_and_alias_ignore_case(text: str) -> None:
    """The driver's name and the short one find the device, however they are typed."""
    assert names(text) == ["NVIDIA H200"]


def test_prefix_ends_at_a_word() -> None:
    """A prefix is a whole number of words: H100 is no beginning of H1000."""
    assert names("NVIDIA H1000") == ["NVIDIA H1000"]
    assert names("NVIDIA H100", all_matches=True) == ["NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"]
    with pytest.raises(HardwareError, match="no hardware matches 'NVIDIA H10'"):
        names("NVIDIA H10")


def test_devices_that_compare_are_all_meant() -> None:
    """Several names of devices with one arch and size are no ambiguity."""
    assert names("a100") == ["NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB"]


def test_devices_that_differ_are_listed() -> None:
    """Devices whose timings do not compare are an error that names each, until told otherwise."""
    with pytest.raises(HardwareError) as refused:
        names("h100")
    assert str(refused.value) == (
        "'h100' matches different devices: NVIDIA H100 80GB HBM3 (sm_90, 132 multiprocessors), "
        "NVIDIA H100 PCIe (sm_90, 114 multiprocessors); name one of them, or pass --all-matches"
    )
    assert len(names("nvidia", all_matches=True)) == 6


def test_exact_name_beats_prefix() -> None:
    """A name that is the beginning of others means itself."""
    rows = [Hardware("nvidia", "NVIDIA H100", "sm_90", 132), samples.H100_PCIE]
    assert hardware.match_hardware(rows, "nvidia h100") == rows[:1]


def test_stored_alias_comes_first() -> None:
    """What a person stored beats names and built-in aliases."""
    aliases = {"h200": {"NVIDIA H100 PCIe"}, "ours": {"NVIDIA H200"}}
    assert names("h200", aliases=aliases) == ["NVIDIA H100 PCIe"]
    assert names("OURS", aliases=aliases) == ["NVIDIA H200"]


@pytest.mark.parametrize("text", ["", "  ", "B200", "NVIDIA  H200", "200"])
def test_no_match_lists_what_there_is(text: str) -> None:
    """A name that means nothing is answered with what there is."""
    with pytest.raises(HardwareError, match=r"no hardware matches .*; there is: NVIDIA A100-SXM4-40GB \(sm_80, 108"):
        names(text)


def test_no_match_in_an_empty_warehouse() -> None:
    """Before the first measurement the message says so."""
    with pytest.raises(HardwareError, match="there is none yet; add those that ship with"):
        hardware.match_hardware([], "h200")


def test_every_builtin_alias_means_a_known_device() -> None:
    """No alias leads nowhere, and no known device is listed twice."""
    for alias in BUILTIN_ALIASES:
        assert hardware.match_hardware(KNOWN_DEVICES, alias, all_matches=True), alias
    assert len({device.key for device in KNOWN_DEVICES}) == len(KNOWN_DEVICES)


def test_known_h200() -> None:
    """The bundled measurements' device has its published figures."""
    assert known_device("h200") == Hardware(
        vendor="nvidia",
        name="NVIDIA H200",
        arch="sm_90",
        multiprocessors=132,
        l2_bytes=62914560,
        shared_memory_per_block_bytes=232448,
        memory_bytes=141_000_000_000,
        memory_bandwidth_bytes_per_s=4_800_000_000_000,
        max_clock_mhz=1980,
    )


def test_known_device_is_one_or_none() -> None:
    """An import needs one device: nothing for a strange name, an error for several."""
    assert known_device("NVIDIA Z900") is None
    assert known_device("") is None
    with pytest.raises(HardwareError, match=r"'h100' could be any of: NVIDIA H100 80GB HBM3 .*; name one of them"):
        known_device("h100")


def test_split_names() -> None:
    """A comma separates names, but not within the brackets that tell two devices of one name apart."""
    listed = "NVIDIA H100 (sm_90, 132 multiprocessors)"
    assert split_names(f" h200 , {listed},,a100") == ["h200", listed, "a100"]
    assert split_names(" , ") == []


def test_the_name_alone_decides() -> None:
    """Of several devices of a name the first preference that has any decides; else they are listed."""
    sxm, nvl, pcie = known_devices("h100")
    assert find_device("NVIDIA H100", [samples.H200], [pcie], [sxm]) == pcie
    assert find_device("h200", [sxm]) == known_device("h200")
    stored = replace(sxm, name="NVIDIA H100 Own")
    assert find_device("h100", [stored], stored=[stored]) == stored
    assert find_device("ours", stored=[stored], aliases={"ours": {"NVIDIA H100 Own"}}) == stored
    for preferences in ((), ([samples.H200],), ([sxm, nvl],)):
        with pytest.raises(HardwareError, match=r"'h100' could be any of: NVIDIA H100 80GB HBM3 .*; name one of them$"):
            find_device("h100", *preferences)


def test_an_unknown_name() -> None:
    """It is answered with names like it, else with all, and with what to do about a new GPU."""
    with pytest.raises(HardwareError) as refused:
        find_device("NVIDIA H20O")
    assert str(refused.value) == (
        "no device is known by the name 'NVIDIA H20O'; similar names: NVIDIA H20, NVIDIA H200, NVIDIA B200; to add a"
        " GPU, run `diode tune` on it, or `diode-collect` for its timings alone"
    )
    with pytest.raises(HardwareError, match=r"'abacus'; known: NVIDIA B200, NVIDIA H200, .*; to add a GPU, run `diode"):
        find_device("abacus")


def test_measured_devices_come_first(store: Store) -> None:
    """Of devices that a name may mean one that was measured counts, unless it must not be guessed."""
    store.write([samples.measurement(1, hardware=samples.H100), decision(2, hardware=samples.H100_PCIE)])
    with store.engine.connect() as connection:
        assert [row.name for row in hardware.match(connection, "h100")] == ["NVIDIA H100 80GB HBM3"]
        with pytest.raises(HardwareError, match="'h100' matches different devices"):
            hardware.match(connection, "h100", measured_first=False)


def test_known_attributes_fill_gaps_only() -> None:
    """What a driver says stands; what it does not say comes from the table, if it is that very device."""
    filled = with_known_attributes(replace(samples.H200, memory_bytes=5))
    assert (filled.memory_bytes, filled.l2_bytes) == (5, 62914560)
    other = replace(samples.H200, multiprocessors=100)
    assert with_known_attributes(other) is other


def test_stored_hardware_is_listed(any_store: Store) -> None:
    """Each device comes by name with its attributes, aliases and number of measurements."""
    fill(any_store, replace(samples.H200, l2_bytes=7, extra={"a": 1}), samples.H100, samples.H100)
    with write_transaction(any_store.engine) as connection:
        hardware.add_alias(connection, "h200", "Big")
        listed = hardware.list_hardware(connection)
    assert [(row.name, row.aliases, row.measurements) for row in listed] == [
        ("NVIDIA H100 80GB HBM3", (), 2),
        ("NVIDIA H200", ("big",), 1),
    ]
    assert listed[1].hardware == replace(samples.H200, l2_bytes=7, extra={"a": 1})
    assert (listed[1].arch, listed[1].multiprocessors) == ("sm_90", 132)


def test_match_in_a_warehouse(any_store: Store) -> None:
    """A warehouse answers for what it holds, by connection or by rows, built-in aliases included."""
    fill(any_store, samples.H200, samples.H100_PCIE)
    with any_store.engine.connect() as connection:
        rows = hardware.list_hardware(connection)
        assert [row.name for row in hardware.match(connection, "h200")] == ["NVIDIA H200"]
        assert hardware.match(rows, "h100") == hardware.match(connection, "NVIDIA H100 PCIe")
        assert len(hardware.match(rows, "nvidia", all_matches=True)) == 2


def test_alias_can_be_given_and_moved(any_store: Store) -> None:
    """An alias works at once in any case, and giving it again moves it: a mistake can be mended."""
    fill(any_store, samples.H200, samples.H100)
    with write_transaction(any_store.engine) as connection:
        assert [row.name for row in hardware.add_alias(connection, "h200", " The  Box ")] == ["NVIDIA H200"]
        assert [row.name for row in hardware.match(connection, "the box")] == ["NVIDIA H200"]
        hardware.add_alias(connection, "NVIDIA H100", "the box")
        assert [row.name for row in hardware.match(connection, "THE BOX")] == ["NVIDIA H100 80GB HBM3"]
        assert connection.scalar(sa.select(sa.func.count()).select_from(schema.hardware_aliases)) == 1


@pytest.mark.parametrize(
    ("name", "alias", "message"),
    [
        ("h300", "x", "no hardware matches 'h300'"),
        ("h200", "  ", "an alias must be one or more printable characters"),
        ("h200", "a\x1b[31m", "an alias must be one or more printable characters"),
        ("h200", "nvidia h100 80gb hbm3", "is the name of a device; give the hardware first"),
        ("h200", "NVIDIA H200", "is the name of a device; give the hardware first"),
    ],
)
def test_impossible_alias(any_store: Store, name: str, alias: str, message: str) -> None:
    """An alias of nothing, without a letter, or that is a device's name (the wrong order) is refused."""
    fill(any_store, samples.H200, samples.H100)
    with write_transaction(any_store.engine) as connection, pytest.raises(HardwareError, match=message):
        hardware.add_alias(connection, name, alias)
