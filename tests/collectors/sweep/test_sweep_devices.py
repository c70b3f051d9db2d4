"""Which devices a sweep times, and which it plans for."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import samples
from diode_collectors.sweep import devices as sweep_devices
from diode_collectors.sweep.commands.collect import app
from diode_collectors.sweep.devices import devices_of_rank, find_devices, parse_devices
from diode_store.errors import HardwareError, SettingsError

if TYPE_CHECKING:
    from conftest import RunCommand
    from diode_store.records import Hardware

pytestmark = pytest.mark.usefixtures("_devices_asked_once")


def test_devices_are_named_as_torch_does() -> None:
    """One, several, all GPUs; each once."""
    assert parse_devices("cpu") == ("cpu",)
    assert parse_devices("cuda:1, cuda:0,cuda:1") == ("cuda:1", "cuda:0")
    for text, message in (
        ("cuda:0,cpu", "a sweep runs on GPUs or on the CPU, not on both"),
        ("meta", "a sweep runs on cuda or cpu, not on meta"),
        ("cpu:0", "unknown device 'cpu:0'"),
        (",", "--device names no device"),
    ):
        with pytest.raises(SettingsError, match=message):
            parse_devices(text)


def test_each_process_of_torchrun_has_a_gpu_of_its_own() -> None:
    """By its number on the host, unless it is alone there or sees but one device."""
    [cpu] = find_devices(("cpu",))
    gpus = tuple(replace(cpu, name=f"cuda:{index}") for index in range(4))
    second = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert devices_of_rank(gpus, second) == gpus[1:2]
    assert devices_of_rank(gpus[:1], second) == gpus[:1]
    assert devices_of_rank((cpu,), second) == (cpu,)
    for alone in ({}, {"LOCAL_RANK": "0"}, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}):
        assert devices_of_rank(gpus, alone) == gpus
    with pytest.raises(HardwareError, match=r"LOCAL_RANK 4 has no GPU of its own: there are 4; start no more proc"):
        devices_of_rank(gpus, {"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "8"})
    with pytest.raises(SettingsError, match=r"LOCAL_RANK is 'x' of LOCAL_WORLD_SIZE '4', which are not numbers"):
        devices_of_rank(gpus, {**second, "LOCAL_RANK": "x"})


def test_torchrun_is_said_and_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A note names the GPU; who names devices gets these."""
    [cpu] = find_devices(("cpu",))
    gpus = tuple(replace(cpu, name=f"cuda:{index}") for index in range(2))
    monkeypatch.setattr(sweep_devices, "find_devices", lambda names: gpus if names is None else gpus[:1])
    for name, value in (("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    asked = ("--shape", "mm:64x64x64", "--dry-run", "--json")
    found = CliRunner().invoke(app, asked)
    assert json.loads(found.stdout)["devices"] == ["cuda:1"], found.output
    assert found.stderr == "of 2 GPUs cuda:1 is used, by LOCAL_RANK; --device names others\n"
    found = CliRunner().invoke(app, [*asked, "--device", "cuda:0"])
    assert (json.loads(found.stdout)["devices"], found.stderr) == (["cuda:0"], "")


@pytest.mark.quick(1)
@pytest.mark.parametrize("arguments", [(), ("--device", "cuda"), ("--device", "cuda:99"), ("--dry-run",)], ids=str)
def test_without_a_gpu_the_cpu_is_not_timed_instead(collect: RunCommand, arguments: tuple[str, ...]) -> None:
    """Unless it is asked for: the error says why there is no GPU, and what to ask for."""
    finished = collect("--shape", "mm:8x8x8", *arguments)
    assert (finished.code, finished.out) == (1, "")
    [line] = finished.err.splitlines()
    why = r"(is built for the CPU|CUDA_VISIBLE_DEVICES is '')"
    assert re.match(rf"error: no GPU found: .*{why}.* --device cpu; .* --hardware h200 --dry-run$", line)


def test_a_gpu_of_another_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are GPUs, the error lists them."""
    [device], _ = sweep_devices._ask("cpu")
    monkeypatch.setattr(sweep_devices, "_ask", lambda _: ([replace(device, name="cuda:0")], ""))
    assert [found.name for found in find_devices(None)] == ["cuda:0"]
    with pytest.raises(HardwareError, match=r"^no device 'cuda:99': torch sees cuda:0$"):
        find_devices(("cuda:99",))


@pytest.mark.parametrize(
    ("cuda", "driver", "hidden", "expected"),
    [
        (None, "", None, "is built for the CPU, and the driver shows no NVIDIA GPU"),
        (None, "NVIDIA L4", None, "is built for the CPU, but there is NVIDIA L4; install a CUDA build of torch"),
        ("13.0", "NVIDIA L4", "-1", "CUDA_VISIBLE_DEVICES is '-1', which hides the GPUs from torch .*; unset it"),
        ("13.0", "NVIDIA L4", None, "cannot use one though there is NVIDIA L4: Found no NVIDIA driver on your system"),
    ],
)
def test_the_reason_for_no_gpu(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, driver: str, hidden: str | None, expected: str
) -> None:
    """A CPU build, a variable that hides the GPUs, or what CUDA says."""
    import torch

    def fail() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system. Please check that\nyou have one")

    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "init", fail)
    monkeypatch.setattr(sweep_devices, "_gpus_of_driver", lambda: driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert re.search(expected, sweep_devices._why_no_gpu())


def test_a_device_elsewhere_is_planned_for(collect: RunCommand) -> None:
    """By the table of known devices: its shared memory, TMA and memory decide what would be timed."""
    shapes = ("--shape", "mm:4096x4096x4096", "--shape", "mm:40000x40000x40000", "--dry-run", "--json")
    found = {name: json.loads(collect(*shapes, "--hardware", name).out) for name in ("h100-nvl", "l4")}
    assert {name: (told["hardware"], len(told["problems"]), told["choices"]) for name, told in found.items()} == {
        "h100-nvl": ("NVIDIA H100 NVL", 2, 56),
        "l4": ("NVIDIA L4", 1, 16),
    }
    assert found["l4"]["too_large"] == ["mm:40000x40000x40000/nn/bf16"]
    assert {(told["cores"], told["skipped"]) for told in found.values()} == {(16, None)}
    assert found["h100-nvl"]["estimate_s"] == pytest.approx((2 * 1.8 + 56 * 0.22) / 16)
    finished = collect(*shapes[:-1], "--hardware", "l4")
    assert finished.err.splitlines() == [
        "1 problem left out, too large for NVIDIA L4: mm:40000x40000x40000/nn/bf16",
        "1 problem, about 16 choices, about 0 s on NVIDIA L4 with 16 cores",
    ]


@pytest.fixture
def ships(monkeypatch: pytest.MonkeyPatch) -> dict[Path, Hardware]:
    """Return what ships, segments by their device; nothing unless a test fills it."""
    shipped: dict[Path, Hardware] = {}
    monkeypatch.setattr("diode_store.exchange.bundled.bundled_segments", lambda: shipped)
    return shipped


def test_a_variant_that_ships_is_planned_for(collect: RunCommand, ships: dict[Path, Hardware]) -> None:
    """Of several devices of a name it is the one that was measured, which is said."""
    ships[Path("h100.seg")] = samples.H100_PCIE
    finished = collect("--shape", "mm:4096x4096x4096", "--dry-run", "--hardware", "NVIDIA H100")
    assert finished.err.splitlines() == [
        "hardware: NVIDIA H100 PCIe (sm_90, 114 multiprocessors)",
        "1 problem, about 28 choices, about 0 s on NVIDIA H100 PCIe with 16 cores",
    ]


@pytest.mark.usefixtures("ships")
def test_a_name_of_several_variants_is_planned_for(collect: RunCommand) -> None:
    """For the variant with the least memory, which it names."""
    finished = collect("--shape", "mm:4096x4096x4096", "--dry-run", "--hardware", "h100")
    assert finished.err.splitlines() == [
        "h100 may also be NVIDIA H100 PCIe or NVIDIA H100 NVL; this plans for the least memory, NVIDIA H100 80GB HBM3",
        "1 problem, about 28 choices, about 0 s on NVIDIA H100 80GB HBM3 with 16 cores",
    ]


@pytest.mark.usefixtures("ships")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nvidia", r"'nvidia' could be any of: NVIDIA .*, NVIDIA .*; name one"),
        ("h1", r"no device is known by the name 'h1'; similar names: h"),
    ],
)
def test_a_device_elsewhere_must_be_known(collect: RunCommand, name: str, message: str) -> None:
    """A name of several architectures lists the devices it may mean, an unknown one those that are known."""
    finished = collect("--family", "llama3-8b", "--dry-run", "--hardware", name)
    assert (finished.code, finished.out) == (1, "")
    assert re.match(f"error: --hardware: {message}", finished.err)


def test_the_cpu_is_found_without_torch_here() -> None:
    """Another process is asked, so that this one holds no GPU."""
    [device] = find_devices(("cpu",))
    assert (device.name, device.is_cpu, device.has_tma) == ("cpu", True, False)
    assert device.environment.torch != "unknown"
