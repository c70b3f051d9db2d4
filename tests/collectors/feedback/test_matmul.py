"""The two ways to keep what one's own compiles measure, in real compiles on this CPU."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from spool_reading import spooled
from torch._inductor.select_algorithm import add_feedback_saver, get_algorithm_selector_cache

from diode_collectors.inductor.device import detect_hardware
from diode_collectors.matmul import MatmulDatasetCollector, collect_to_spool
from diode_store.errors import DiodeError, ExportError, ImportFileError
from diode_store.exchange.foreign.torch_diode_files import read_file
from diode_store.exchange.foreign.torch_diode_types import Dataset, MMShape, Table
from inductor_harness import VENDOR_MS, block_time_ms, compile_and_run, quiet_torch, triton_choices_on_cpu
from samples import measurement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

A, B = torch.zeros(128, 512), torch.zeros(512, 256)
VENDOR = "vendor kernels (a data set holds Triton kernels only)"


@pytest.fixture
def _stock_savers() -> Iterator[None]:
    """Leave Inductor's list of savers as it was."""
    cache = get_algorithm_selector_cache()
    before = list(cache.feedback_saver_fns)
    yield
    cache.feedback_saver_fns = before


def shape(m: int, n: int, k: int, *, batch: int = 1, dtype: str = "float32") -> MMShape:
    """Return the shape of a product."""
    sizes = {"B": batch, "M": m, "N": n, "K": k}
    dtypes = dict.fromkeys(("M_dtype", "K_dtype", "out_dtype"), dtype)
    return MMShape(**sizes, **dtypes, out_size=(batch, m, n), out_stride=(m * n, n, 1))


def collected(function: Any, *inputs: torch.Tensor, **options: Any) -> MatmulDatasetCollector:
    """Return a collector that saw one compile."""
    with triton_choices_on_cpu(**options), MatmulDatasetCollector("my gpu") as collector:
        compile_and_run(function, *inputs)
    return collector


def heard(count: int = 1) -> MatmulDatasetCollector:
    """Return a collector that was told of ``count`` measurements."""
    collector = MatmulDatasetCollector()
    for number in range(count):
        collector._hear(measurement(number))
    return collector


def fails_when_wide(choice: Any) -> float:
    """Time a choice by its tile; wide ones fail."""
    milliseconds = block_time_ms(choice)
    return float("inf") if milliseconds != VENDOR_MS and choice.info_dict()["BLOCK_N"] >= 64 else milliseconds


def test_times_are_what_inductor_measured() -> None:
    """In milliseconds, Infinity for a kernel that failed; the vendor's kernel is counted."""
    collector = collected(torch.mm, A, B, time_ms=fails_when_wide)
    problems = collector.get_dataset().problems
    assert list(problems) == [("my gpu", "mm", shape(128, 256, 512))]
    timings = problems["my gpu", "mm", shape(128, 256, 512)].timed_configs
    for timed in timings:
        config = timed.config
        volume = config.block_m * config.block_n * config.block_k
        expected = float("inf") if config.block_n >= 64 else 1.0 + 1.0 / volume
        assert (timed.time, config.name, config.EVEN_K) == (pytest.approx(expected), "triton_mm", True)
    assert {timed.is_timed for timed in timings} == {True, False}
    assert dict(collector.not_held.left_out) == {VENDOR: 1}
    assert collector.not_held.timings == len(timings) == collector.stats.timings - 1


@pytest.mark.long
def test_batches_dtypes_and_biases_are_the_true_ones() -> None:
    """Nothing is assumed of a problem."""
    with triton_choices_on_cpu(), MatmulDatasetCollector("my gpu") as collector:
        compile_and_run(torch.bmm, torch.zeros(4, 64, 32), torch.zeros(4, 32, 48))
        compile_and_run(torch.mm, A.bfloat16(), B.bfloat16())
        compile_and_run(torch.addmm, torch.zeros(256), A, B)
        compile_and_run(torch.mm, B.t(), A.t())
    assert list(collector.get_dataset().problems) == [
        ("my gpu", "bmm", shape(64, 48, 32, batch=4)),
        ("my gpu", "mm", shape(128, 256, 512, dtype="bfloat16")),
        ("my gpu", "addmm", shape(128, 256, 512)),
        ("my gpu", "mm", shape(256, 128, 512)),
    ]
    strides = "strides of inputs that are not row-major"
    assert collector.not_held.measurements_without[strides] == 2  # the transposed one, and the bias that is spread


def test_the_device_has_its_own_name_unless_given() -> None:
    """``unknown``, the default, stands for what the driver says."""
    device = detect_hardware("cpu")
    assert device is not None
    with triton_choices_on_cpu(), MatmulDatasetCollector() as collector:
        compile_and_run(torch.mm, A, B)
    assert [name for name, _, _ in collector.get_dataset().problems] == [device.name]
    assert [name for name, _, _ in collected(torch.mm, A, B).get_dataset().problems] == ["my gpu"]


def test_a_stock_compile_of_this_cpu() -> None:
    """Its C++ and ATen kernels have no place in upstream's layout; all are counted."""
    settings = {"max_autotune_gemm_backends": "CPP,ATEN", "fx_graph_cache": False, "autotune_local_cache": False}
    with quiet_torch(), torch._inductor.config.patch(settings), MatmulDatasetCollector() as collector:
        compile_and_run(torch.bmm, torch.randn(4, 64, 32), torch.randn(4, 32, 48))
    assert collector.get_dataset() == Dataset()
    assert collector.stats.timings == sum(collector.not_held.left_out.values()) == 2
    assert collector.not_held.left_out[VENDOR] == 1
    assert collector.coverage() is not None


def test_replays_enter_the_data_set_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Timings that come back from Inductor's cache are no second measurement; saving says how many there were."""
    with triton_choices_on_cpu(autotune_local_cache=True), MatmulDatasetCollector("my gpu") as collector:
        compile_and_run(torch.mm, A, B)
        before = collector.get_dataset()
        compile_and_run(torch.mm, A, B)
    assert collector.get_dataset() == before != Dataset()
    assert collector.stats.replays == 1
    replays = collector.stats.timings // 2
    assert collector.not_held.left_out["replays of cached timings"] == replays
    collector.save_to_file(tmp_path / "data.json")
    assert f"{replays} timings left out: replays of cached timings" in caplog.text


def test_it_may_be_started_again() -> None:
    """What is compiled in between is not collected; starting and stopping twice is harmless."""
    collector = MatmulDatasetCollector("my gpu")
    collector.stop_collection()
    with triton_choices_on_cpu():
        for width, collects in ((64, True), (128, False), (256, True)):
            if collects:
                collector.start_collection()
                collector.start_collection()
            compile_and_run(torch.mm, A, torch.zeros(512, width))
            collector.stop_collection()
            collector.stop_collection()
    assert [found.N for _, _, found in collector.get_dataset().problems] == [64, 256]


@pytest.mark.usefixtures("_stock_savers")
def test_only_its_own_saver_is_removed() -> None:
    """Other people's savers stay, in their order."""

    def other(*_: Any) -> None: ...

    cache = get_algorithm_selector_cache()
    cache.feedback_saver_fns = []
    with MatmulDatasetCollector():
        add_feedback_saver(other)
        with MatmulDatasetCollector():
            assert len(cache.feedback_saver_fns) == 3
        assert len(cache.feedback_saver_fns) == 2
    assert cache.feedback_saver_fns == [other]


def test_garbage_is_survived() -> None:
    """A saver that is told nonsense neither raises nor loses the good events."""
    with triton_choices_on_cpu(), MatmulDatasetCollector("my gpu") as collector:
        for saver in get_algorithm_selector_cache().feedback_saver_fns:
            saver(None, "mm", None, None)
            saver({object(): 1.0}, "addmm", [object()], [])
        compile_and_run(torch.mm, A, B)
    assert [op for _, op, _ in collector.get_dataset().problems] == ["mm"]
    assert (collector.stats.recorded, collector.stats.failed) == (1, 2)


def test_threads_may_collect_and_look_at_once() -> None:
    """Each record is in the data set once, whoever asks meanwhile."""
    collector = MatmulDatasetCollector()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            assert len({device for device, _, _ in collector.to_table().problems}) <= 1

    def hear(first: int) -> None:
        for number in range(first, first + 200):
            collector._hear(measurement(number))

    lookers = [threading.Thread(target=look) for _ in range(2)]
    hearers = [threading.Thread(target=hear, args=(1000 * number,)) for number in range(4)]
    for thread in [*lookers, *hearers]:
        thread.start()
    for thread in hearers:
        thread.join()
    done.set()
    for thread in lookers:
        thread.join()
    assert len(collector.get_dataset().problems) == 800
    assert collector.not_held.timings == 1600


def test_a_compile_never_waits_for_the_data_set() -> None:
    """A record is taken while somebody holds the data set's lock."""
    collector = MatmulDatasetCollector()
    with collector._lock:
        hearing = threading.Thread(target=collector._hear, args=(measurement(),))
        hearing.start()
        hearing.join(30)
        assert not hearing.is_alive()
    assert collector.not_held.timings == 2


def test_what_was_handed_out_stays_as_it_was() -> None:
    """A data set does not grow under whoever looks at it, and what they add is theirs."""
    collector = heard()
    before = collector.get_dataset()
    collector._hear(measurement())
    collector._hear(measurement(1))
    (solution,) = before.problems.values()
    assert len(solution.timed_configs) == 2
    solution.timed_configs.clear()
    assert collector.not_held.timings == 6
    assert [len(found.timed_configs) for found in collector.get_dataset().problems.values()] == [4, 2]


@pytest.mark.parametrize("suffix", [".json", ".msgpack"])
def test_saving_and_loading(suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another collector gets the same data set and goes on from there; what the file lacks is in the log."""
    path = tmp_path / f"data{suffix}"
    saved = heard(2)
    saved.save_to_file(str(path))
    assert caplog.messages == [f"{path}: 2 timings left out: {VENDOR}; collect_to_spool keeps them"]
    loaded = MatmulDatasetCollector()
    loaded._hear(measurement(7))
    loaded.load_from_file(path)
    assert loaded.get_dataset() == saved.get_dataset() != Dataset()
    loaded._hear(measurement(7))
    assert [found.M for _, _, found in loaded.get_dataset().problems] == [64, 65, 71]


@pytest.mark.parametrize("suffix", [".json", ".msgpack"])
def test_saving_the_table(suffix: str, tmp_path: Path) -> None:
    """Each problem's configs, the fastest first."""
    collector = MatmulDatasetCollector("h200")
    collector._hear(measurement(runtimes=(10.5, 20.0, 5.0, None, 7.5)))
    path = tmp_path / f"table{suffix}"
    collector.save_table_to_file(path)
    table = read_file(path, Table)
    assert table == collector.to_table()
    (solution,) = table.problems.values()
    assert [config.block_m for config in solution.config] == [32, 64, 16]


def test_json_is_upstreams_layout(tmp_path: Path) -> None:
    """Device, op, problem as JSON text, configs in their order."""
    heard().save_to_file(tmp_path / "data.json")
    (solution,) = json.loads((tmp_path / "data.json").read_text())["hardware"]["NVIDIA H200"]["operation"]["mm"][
        "solution"
    ].items()
    problem, found = solution
    assert json.loads(problem)["out_size"] == [1, 64, 256]
    first = found["timed_configs"][0]
    assert (first["config"]["block_m"], first["config"]["name"], first["time"]) == (16, "triton_mm", 0.02025)


def test_a_bad_file_costs_nothing(tmp_path: Path) -> None:
    """What was collected is still there, and the file's name and fault are said."""
    collector = heard()
    path = tmp_path / "bad.json"
    path.write_text('{"hardware": {"x": 1}}')
    with pytest.raises(ImportFileError, match=r"bad\.json: hardware 'x': expected an object, not a number"):
        collector.load_from_file(path)
    assert [device for device, _, _ in collector.get_dataset().problems] == ["NVIDIA H200"]


@pytest.mark.parametrize("name", ["data", "data.pt", "data.json.txt"])
def test_other_suffixes(name: str, tmp_path: Path) -> None:
    """The suffix says the format."""
    collector = heard()
    for action in (collector.save_to_file, collector.save_table_to_file, collector.load_from_file):
        with pytest.raises((ExportError, ImportFileError), match=r"name it \.json or \.msgpack"):
            action(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """Saving says so, and the data set is kept."""
    collector = heard()
    with pytest.raises(DiodeError, match="cannot be written"):
        collector.save_to_file(tmp_path / "no" / "data.json")
    assert collector.get_dataset() != Dataset()


def test_streaming_into_the_spool(tmp_path: Path) -> None:
    """Every kernel is there, the vendor's too, with the true strides."""
    with triton_choices_on_cpu(), collect_to_spool(tmp_path / "spool") as collector:
        compile_and_run(torch.mm, A, torch.zeros(256, 512).t())
    (found,) = spooled(tmp_path / "spool")
    assert [spec.stride for spec in found.problem.inputs] == [(512, 1), (1, 512)]
    assert {timing.config.template for timing in found.timings} == {"aten::mm", "triton::mm"}
    assert (collector.stats.recorded, collector.stats.dropped) == (1, 0)


def test_both_at_once(tmp_path: Path) -> None:
    """One compile lands in the data set and in the spool."""
    with triton_choices_on_cpu(), MatmulDatasetCollector() as kept, collect_to_spool(tmp_path / "spool") as streamed:
        compile_and_run(torch.mm, A, B)
    (found,) = spooled(tmp_path / "spool")
    assert kept.stats.timings == streamed.stats.timings == len(found.timings)
    assert kept.not_held.timings == len(found.timings) - 1


def test_the_limits_of_the_spool_are_passed_on(tmp_path: Path) -> None:
    """A full spool costs the newest record, and that is counted."""
    with triton_choices_on_cpu(), collect_to_spool(tmp_path / "spool", max_bytes=100) as collector:
        compile_and_run(torch.mm, A, B)
    assert collector.stats.dropped == 1
    assert spooled(tmp_path / "spool") == []
