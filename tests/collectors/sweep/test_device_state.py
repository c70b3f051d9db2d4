"""Clocks, throttling and foreign processes, with NVML's own constants and a stand-in for its calls."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

from diode_collectors.sweep import device_state
from diode_collectors.sweep.device_state import (
    DeviceMonitor,
    DeviceSample,
    ForeignProcesses,
    descends_from,
    flags_of,
    nvml_uuid,
    state_of,
)
from diode_store.records import DeviceState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CAPPED = pynvml.nvmlClocksEventReasonSwPowerCap
IDLE = pynvml.nvmlClocksEventReasonGpuIdle
MIB = 2**20


class FakeNvml:
    """Answers as an H200 does; the constants and errors are NVML's own."""

    def __init__(self) -> None:
        """Hold what a test may change, and what it may ask for."""
        self.processes: dict[int, int | None] = {}
        self.used = 0
        self.errors: dict[str, int] = {}
        """NVML's error by the name of the call that fails."""
        self.calls: list[tuple[object, ...]] = []
        self.is_open = False

    def count(self, name: str) -> int:
        """Return how often a function was called."""
        return sum(call[0] == f"nvml{name}" for call in self.calls)

    def as_module(self) -> SimpleNamespace:
        """Return what takes the place of the module."""
        answers: dict[str, Callable[..., object]] = {
            "Init": lambda: setattr(self, "is_open", True),
            "Shutdown": lambda: setattr(self, "is_open", False),
            "DeviceGetHandleByUUID": lambda uuid: f"handle of {uuid}",
            "DeviceGetClockInfo": lambda _, kind: {pynvml.NVML_CLOCK_SM: 1755, pynvml.NVML_CLOCK_MEM: 3201}[kind],
            "DeviceGetMaxClockInfo": lambda _, kind: {pynvml.NVML_CLOCK_SM: 1980}[kind],
            "DeviceGetTemperature": lambda _, sensor: {pynvml.NVML_TEMPERATURE_GPU: 41}[sensor],
            "DeviceGetCurrentClocksEventReasons": lambda _: CAPPED,
            "DeviceGetCurrentClocksThrottleReasons": lambda _: CAPPED,
            "DeviceGetMemoryInfo": lambda _, version: {pynvml.nvmlMemory_v2: SimpleNamespace(used=self.used)}[version],
            "DeviceGetComputeRunningProcesses": lambda _: [
                SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.processes.items()
            ],
        }
        functions = {f"nvml{name}": self._recorded(f"nvml{name}", answer) for name, answer in answers.items()}
        return SimpleNamespace(**{**vars(pynvml), **functions})

    def _recorded(self, name: str, answer: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            self.calls.append((name, *arguments))
            if name in self.errors:
                raise pynvml.NVMLError(self.errors[name])
            return answer(*arguments)

        return call


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """Put the stand-in in NVML's place, look at processes every time, and end with nothing left open."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake.as_module())
    monkeypatch.setattr(device_state, "_PROCESSES_EVERY_S", 0.0)
    yield fake
    assert not fake.is_open


def loaded(*clocks: int, reasons: int = 0) -> list[DeviceSample]:
    """Return a sample under load for each SM clock."""
    return [DeviceSample(sm_clock_mhz=clock, reasons=reasons) for clock in clocks]


def ours(*pids: int) -> Any:
    """Return what tells these pids as ours."""
    return pids.__contains__


def test_reasons_are_nvmls() -> None:
    """Every reason that NVML's module names has a name here, under the same bit."""
    prefixes = ("nvmlClocksEventReason", "nvmlClocksThrottleReason")
    bits = {getattr(pynvml, name) for name in dir(pynvml) if name.startswith(prefixes)}
    groups = {
        pynvml.nvmlClocksEventReasonNone,
        pynvml.nvmlClocksEventReasonAll,
        pynvml.nvmlClocksThrottleReasonAll,
    }
    assert set(device_state.REASONS) == bits - groups
    assert (device_state.GPU_IDLE, device_state.SW_POWER_CAP) == (IDLE, CAPPED)
    for name in ("HwSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown", "SwThermalSlowdown"):
        bit = getattr(pynvml, f"nvmlClocksThrottleReason{name}")
        assert device_state.REASONS[bit].replace("_", "") == name.lower()


@pytest.mark.parametrize("uuid", ["GPU-8a0f", "8a0f"])
def test_a_sample(nvml: FakeNvml, uuid: str) -> None:
    """A GPU is opened by its UUID, with or without NVML's prefix, and says everything."""
    nvml.processes = {os.getpid(): 600 * MIB}
    nvml.used = 600 * MIB
    with DeviceMonitor(uuid) as monitor:
        assert monitor.sample() == DeviceSample(1755, 3201, 41, CAPPED, 0)
    assert ("nvmlDeviceGetHandleByUUID", "GPU-8a0f") in nvml.calls
    assert {call[1] for call in nvml.calls if call[0] == "nvmlDeviceGetClockInfo"} == {"handle of GPU-8a0f"}
    assert monitor.sample() == DeviceSample()


def test_a_mig_device_keeps_its_prefix() -> None:
    """What is no whole GPU is not made one."""
    assert nvml_uuid("MIG-1") == "MIG-1"


def test_processes_are_not_listed_at_every_sample(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dear question is asked a few times a second, the others each time."""
    monkeypatch.setattr(device_state, "_PROCESSES_EVERY_S", 60.0)
    with DeviceMonitor("1") as monitor:
        nvml.calls.clear()
        for _ in range(3):
            monitor.sample()
    assert (nvml.count("DeviceGetComputeRunningProcesses"), nvml.count("DeviceGetClockInfo")) == (1, 6)


def test_what_a_gpu_does_not_tell(nvml: FakeNvml) -> None:
    """A reading that is not supported is None and asked for once; one that failed is tried again."""
    nvml.errors = {
        "nvmlDeviceGetTemperature": pynvml.NVML_ERROR_NOT_SUPPORTED,
        "nvmlDeviceGetCurrentClocksEventReasons": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        "nvmlDeviceGetClockInfo": pynvml.NVML_ERROR_UNKNOWN,
    }
    with DeviceMonitor("1") as monitor:
        samples = [monitor.sample() for _ in range(2)]
    assert samples == [DeviceSample(None, None, None, CAPPED, None)] * 2
    assert nvml.count("DeviceGetTemperature") == nvml.count("DeviceGetCurrentClocksEventReasons") == 1
    assert nvml.count("DeviceGetCurrentClocksThrottleReasons") == 2
    assert nvml.count("DeviceGetClockInfo") == 4


def test_no_gpu(caplog: pytest.LogCaptureFixture) -> None:
    """For a CPU nothing is recorded or flagged, and one line says so."""
    with caplog.at_level(logging.INFO), DeviceMonitor(None) as monitor:
        samples = [monitor.sample(), monitor.sample()]
        assert (monitor.summary(samples), monitor.flags(samples), monitor.is_open) == (DeviceState(), (), False)
    assert [record.getMessage() for record in caplog.records] == [
        "device state is not recorded: this is not a GPU with a UUID"
    ]


@pytest.mark.parametrize("failing", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_no_driver_or_no_such_gpu(nvml: FakeNvml, caplog: pytest.LogCaptureFixture, failing: str) -> None:
    """Without a driver, or with a UUID it does not know, one line says why and timing goes on."""
    nvml.errors = {failing: pynvml.NVML_ERROR_NOT_FOUND}
    monitor = DeviceMonitor("1")
    assert (monitor.sample(), monitor.is_open) == (DeviceSample(), False)
    assert [record.getMessage() for record in caplog.records] == [
        "clocks, throttling and foreign processes of GPU 1 are not recorded: Not Found"
    ]


def test_no_nvml(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Where nvidia-ml-py is not installed it is the same."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert DeviceMonitor("1").sample() == DeviceSample()
    assert len(caplog.records) == 1


def test_summary() -> None:
    """Medians under load, the highest temperature, every reason under load, the most processes."""
    samples = [
        DeviceSample(345, 2619, 30, IDLE, 0),
        DeviceSample(1980, 3201, 50, 0, 0),
        DeviceSample(1755, 3201, 55, CAPPED, 1),
        DeviceSample(1725, 3201, 54, CAPPED | 0x800, None),
    ]
    assert state_of(samples) == DeviceState(1755, 3201, 55, "sw_power_cap,bit_0x800", 1)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], DeviceState()),
        ([DeviceSample()], DeviceState()),
        (loaded(1980), DeviceState(sm_clock_mhz=1980, throttle_reasons="none")),
        ([DeviceSample(345, reasons=IDLE)], DeviceState(sm_clock_mhz=345, throttle_reasons="gpu_idle")),
    ],
)
def test_summary_of_little(samples: list[DeviceSample], expected: DeviceState) -> None:
    """What is unknown stays unknown; where nothing ever ran, the idle state is told."""
    assert state_of(samples) == expected


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], ()),
        ([DeviceSample()], ()),
        (loaded(1980, 1830), ()),
        (loaded(1980, 1770), ("clock_unsteady",)),
        ([*loaded(1980, 1980), DeviceSample(345, reasons=IDLE)], ()),
        (loaded(1980, 1980, reasons=pynvml.nvmlClocksThrottleReasonHwThermalSlowdown), ("throttled",)),
        ([*loaded(1980), *loaded(1980, reasons=pynvml.nvmlClocksEventReasonSwThermalSlowdown)], ("throttled",)),
        (
            loaded(990, 1980, reasons=pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown),
            ("throttled", "clock_unsteady"),
        ),
        ([*loaded(1980, 1980), *loaded(1980, reasons=pynvml.nvmlClocksThrottleReasonHwSlowdown)], ()),
        (loaded(1980, 1980, reasons=pynvml.nvmlClocksThrottleReasonHwSlowdown), ("throttled",)),
        ([*loaded(1980), *loaded(1320, reasons=CAPPED)], ()),
        ([*loaded(1980), *loaded(1100, reasons=CAPPED)], ("throttled",)),
        (loaded(1320, 1400, reasons=CAPPED), ()),
        (loaded(900, 1000, reasons=CAPPED), ("throttled",)),
        ([DeviceSample(foreign_processes=0), DeviceSample(foreign_processes=2)], ("foreign_process",)),
        ([DeviceSample(foreign_processes=None)], ()),
    ],
)
def test_flags(samples: list[DeviceSample], expected: tuple[str, ...]) -> None:
    """Protection flags at once, HW slowdown alone at its second sample, a power cap beyond 40%, no guess ever."""
    assert flags_of(samples, max_sm_clock_mhz=1980) == expected


@pytest.mark.parametrize(
    ("listed", "used", "expected"),
    [
        ({7: 500 * MIB}, 500 * MIB, 0),
        ({7: 500 * MIB, 8: 300 * MIB}, 800 * MIB, 1),
        ({7: 500 * MIB}, 9000 * MIB, None),  # somebody is there who is not listed
        ({7: None}, 9000 * MIB, 0),  # nobody knows how much is whose
        ({7: 500 * MIB}, None, 0),
        ({}, 0, None),
        (None, None, None),
        ({40001: 500 * MIB}, 500 * MIB, None),  # another namespace's pid: ours, or not
    ],
)
def test_foreign_processes(listed: Mapping[int, int | None] | None, used: int | None, expected: int | None) -> None:
    """Where our own pid, 7, is listed every other is foreign; where it is not, nothing can be said."""
    assert ForeignProcesses(ours(7)).count(listed, used) == expected


@pytest.mark.parametrize(
    ("listed", "expected"),
    [({40001: 1}, 0), ({40001: 1, 40002: 1}, 1), ({39000: 1, 40001: 1}, 1), ({39000: 1}, 1), ({}, None)],
)
def test_foreign_processes_of_another_namespace(listed: Mapping[int, int], expected: int | None) -> None:
    """In a container with the host's pids, 39000 was there before us and one of those that came is ours."""
    assert ForeignProcesses(ours(7), contexts=1, before=frozenset({39000})).count(listed, None) == expected


def test_who_was_there_before(nvml: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    """The first monitor looks before there is a context, and warns of memory nobody seems to hold."""
    nvml.processes, nvml.used = {39000: 600 * MIB}, 5600 * MIB
    with DeviceMonitor("1") as monitor:
        assert monitor.before == frozenset({39000})
    assert [record.getMessage() for record in caplog.records] == [
        "GPU 1: 5000 MiB are in use by processes that cannot be seen from here; timings may suffer"
    ]
    with DeviceMonitor("1", contexts=2, before=monitor.before) as lane:
        nvml.processes = {39000: None, 40001: None, 40002: None}
        assert lane.sample().foreign_processes == 1


def test_too_late_to_look(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may have a context already, or that has siblings, does not take them for foreign."""
    nvml.processes = {40001: None}
    with DeviceMonitor("1", contexts=2) as monitor:
        assert (monitor.before, monitor.sample().foreign_processes) == (None, None)
    monkeypatch.setattr(device_state, "_may_have_context", lambda: True)
    with DeviceMonitor("1") as monitor:
        assert (monitor.before, monitor.sample().foreign_processes) == (None, None)


def test_a_sibling_is_ours(nvml: FakeNvml) -> None:
    """Every process below the one that started the sweep is ours; any other is not."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        nvml.processes = {os.getpid(): None, child.pid: None, os.getppid(): None}
        with DeviceMonitor("1") as monitor:
            assert monitor.sample().foreign_processes == 1
        assert descends_from(child.pid, os.getpid())
        assert not descends_from(os.getpid(), child.pid)
        child.communicate(b"\n")
    assert not descends_from(2**22 + 1, os.getpid())
