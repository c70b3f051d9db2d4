"""`diode import` and `diode export` of upstream torch-diode's data sets, JSON and msgpack."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from stored import content
from torch_diode_files import CONFIG, SLOW, dataset, older, timed

from diode_store.exchange.foreign.torch_diode_files import parsed, read_file
from diode_store.exchange.foreign.torch_diode_types import Dataset
from diode_store.records import TimingMethod
from samples import triton_config

if TYPE_CHECKING:
    from conftest import MakeMeasurement, RunCommand
    from diode_store.warehouse.store import Store

pytestmark = pytest.mark.usefixtures("default_database")

ADDED = "1 measurement with 3 timings added\n"


def put(folder: Path, name: str, data: dict[str, Any] | None = None) -> str:
    """Write a data set, by default one of three timings, as the name says and return the file's name."""
    path = folder / name
    data = dataset() if data is None else data
    text = json.dumps(data, indent=2).encode()
    plain = msgpack.packb(data) if ".msgpack" in name else text
    path.write_bytes(gzip.compress(plain) if name.endswith(".gz") else plain)
    return str(path)


@pytest.mark.parametrize("options", [(), ("--format", "torch-diode")])
@pytest.mark.parametrize("name", ["x.json", "x.json.gz", "x.msgpack", "x"])
def test_import(diode: RunCommand, tmp_path: Path, database_url: str, name: str, options: tuple[str, ...]) -> None:
    """Told by what it holds or by the option; milliseconds become microseconds; twice adds nothing."""
    path = put(tmp_path, name)
    assert diode("import", path, *options) == (0, ADDED, "")
    (found,) = content(database_url)
    assert sorted(timing.runtime_us or 0 for timing in found.timings) == [0, 10.5, 20.0]
    assert (found.hardware.name, found.hardware.multiprocessors) == ("NVIDIA H200", 132)
    assert diode("import", path, *options).out == "nothing new: the measurement was there already\n"


def test_import_of_the_older_layout_and_of_a_pipe(tmp_path: Path, database_url: str) -> None:
    """Both layouts of one content are one measurement."""
    program = Path(sys.executable).with_name("diode")
    for data in (dataset(), older(dataset())):
        subprocess.run([program, "import", "-"], input=json.dumps(data).encode(), check=True, capture_output=True)
    assert len(content(database_url)) == 1


def test_hardware_option_overrides(diode: RunCommand, tmp_path: Path, database_url: str) -> None:
    """What the file says instead is kept beside."""
    assert diode("import", put(tmp_path, "x.json"), "--hardware", "b200").code == 0
    (found,) = content(database_url)
    assert (found.hardware.name, found.extra["hardware_name"]) == ("NVIDIA B200", "NVIDIA H200")


def test_unknown_hardware(diode: RunCommand, tmp_path: Path, database_url: str) -> None:
    """One line names the place and the option; with the option it is imported, and then the name is known."""
    path = put(tmp_path, "x.json", dataset(hardware="Anvil 9"))
    result = diode("import", path)
    place = f"{path}: hardware 'Anvil 9', op 'mm', problem 1: no device is known by this name; "
    assert result.code == 1
    assert result.err.splitlines()[0] == f"{place}give --hardware NAME (`diode hardware list` shows known names)"
    device = tmp_path / "anvil.json"
    device.write_text('{"vendor": "acme", "name": "Anvil 9", "arch": "av9", "multiprocessors": 12}')
    assert diode("import", path, "--hardware-file", str(device)).out == ADDED
    other = put(tmp_path, "y.json", dataset(hardware="Anvil 9", N=64, out_size=[1, 64, 64], out_stride=[4096, 64, 1]))
    assert diode("import", other).out == ADDED
    assert {found.hardware.name for found in content(database_url)} == {"Anvil 9"}


def test_a_name_of_several_devices(diode: RunCommand, tmp_path: Path, database_url: str) -> None:
    """The devices that upstream's "NVIDIA H100" may mean are named, and any of these names is taken."""
    path = put(tmp_path, "x.json", dataset(hardware="NVIDIA H100"))
    result = diode("import", path)
    assert (result.code, result.err.splitlines()[0]) == (
        1,
        (
            f"{path}: hardware 'NVIDIA H100', op 'mm', problem 1: the name fits several devices: NVIDIA H100 80GB HBM3 "
            "(sm_90, 132 multiprocessors), NVIDIA H100 NVL (sm_90, 132 multiprocessors), NVIDIA H100 PCIe (sm_90, 114 "
            "multiprocessors); give --hardware with one of these names"
        ),
    )
    assert diode("import", path, "--hardware", "NVIDIA H100 PCIe").out == ADDED
    (found,) = content(database_url)
    assert (found.hardware.multiprocessors, found.extra["hardware_name"]) == (114, "NVIDIA H100")


def test_bad_problems_beside_good_ones(diode: RunCommand, tmp_path: Path, database_url: str) -> None:
    """Each is named by its place; the others are kept."""
    data = dataset()
    data["hardware"]["NVIDIA H200"]["operation"]["bmm"] = dataset(timed(SLOW, -1.0), op="bmm")["hardware"][
        "NVIDIA H200"
    ]["operation"]["bmm"]
    solutions = data["hardware"]["NVIDIA H200"]["operation"]["mm"]["solution"]
    solutions["{"] = {"timed_configs": [timed(CONFIG, 1.0)], "version": 1}
    path = put(tmp_path, "x.json", data)
    result = diode("import", path, "--json")
    report = json.loads(result.out)
    assert (result.code, report["measurements"], report["timings"]) == (1, 1, 3)
    assert [line.partition(": it ")[0].partition(": config")[0] for line in report["bad"]] == [
        f"{path}: hardware 'NVIDIA H200', op 'mm', problem 2",
        f"{path}: hardware 'NVIDIA H200', op 'bmm', problem 1",
    ]
    assert len(content(database_url)) == 1


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b'{"hardware": {', "it is not JSON (line 1, column "), (b"\x82\xa8hardware", "it holds no msgpack (")],
)
def test_broken_files(diode: RunCommand, tmp_path: Path, data: bytes, expected: str) -> None:
    """One line, and files beside it are still read."""
    path = tmp_path / "broken"
    path.write_bytes(data)
    result = diode("import", str(path), put(tmp_path, "good.json"), "--format", "torch-diode")
    assert (result.code, result.out) == (1, ADDED)
    assert result.err.startswith(f"{path}: {expected}")


def test_jsonl_is_not_forced_on_a_data_set(diode: RunCommand, tmp_path: Path) -> None:
    """The format that fits is named."""
    path = put(tmp_path, "x.json")
    result = diode("import", path, "--format", "jsonl")
    assert result.err == f"error: {path} is one of upstream's data sets; read it with --format torch-diode\n"


@pytest.mark.parametrize("name", ["out.json", "out.msgpack", "out.json.gz"])
def test_export(store: Store, diode: RunCommand, tmp_path: Path, make_measurement: MakeMeasurement, name: str) -> None:
    """Triton kernels in milliseconds; what the layout cannot hold is counted and said."""
    store.write([make_measurement(1), make_measurement(2)])
    out = tmp_path / name
    lost = [
        "2 timings left out: vendor kernels (a data set holds Triton kernels only)",
        "2 timings written without the reason of the failure",
    ]
    result = diode("export", "--format", "torch-diode", "-o", str(out))
    assert result == (0, f"{out}: 2 measurements with 4 timings\n", "\n".join(lost) + "\n")
    data = gzip.decompress(out.read_bytes()) if name.endswith(".gz") else out.read_bytes()
    read = parsed(data, Dataset, is_json=name != "out.msgpack")
    fastest = read.get_fastest_configs()
    assert {(device, op, shape.M) for device, op, shape in fastest} == {("NVIDIA H200", "mm", m) for m in (65, 66)}
    assert {config.block_m for config in fastest.values()} == {triton_config(16).block_m}
    report = json.loads(diode("export", "--format", "torch-diode", "-o", str(out), "--force", "--json").out)
    assert report == {"file": str(out), "measurements": 2, "timings": 4, "not_held": lost}


def test_export_of_the_regime_nearest_to_deployment(
    store: Store, diode: RunCommand, tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    """A data set cannot tell regimes apart, so that of each problem only one is in it; the others are counted."""
    problem = make_measurement(1).problem
    for number, regime in enumerate(("write_flush", "graph", None), 1):
        method = TimingMethod("median", regime=regime)
        times = (9.0, 10.0 * number)
        store.write([make_measurement(number, problem=problem, runtimes=times, timing_method=method)])
    store.write([make_measurement(4, runtimes=(9.0, 40.0))])
    out = tmp_path / "out.json"
    report = json.loads(diode("export", "--format", "torch-diode", "-o", str(out), "--json").out)
    why = "4 timings left out: their problem was also timed in a regime nearer to deployment"
    assert (report["measurements"], why in report["not_held"]) == (2, True)
    solutions = read_file(out, Dataset).problems.values()
    assert sorted(timed.time for solution in solutions for timed in solution.timed_configs) == [0.02, 0.04]


def test_export_to_stdout_and_back(
    store: Store, make_measurement: MakeMeasurement, database_url: str, another_database: str
) -> None:
    """JSON goes through a pipe; what comes back is there already, and in an empty warehouse it is the same problem."""
    store.write([make_measurement(1)])
    program = Path(sys.executable).with_name("diode")
    exported = subprocess.run(
        [program, "export", "--format", "torch-diode", "-o", "-"], capture_output=True, check=True, env=dict(os.environ)
    )
    subprocess.run([program, "import", "-"], input=exported.stdout, check=True, capture_output=True)
    [first] = content(database_url)
    to_another = [program, "import", "--database", another_database, "-"]
    subprocess.run(to_another, input=exported.stdout, check=True, capture_output=True)
    [second] = content(f"sqlite:///{another_database}")
    assert second.problem == first.problem
    assert [timing.runtime_us for timing in second.timings if timing.runtime_us] == [20.25]


def test_export_of_vendor_kernels_alone(
    store: Store, diode: RunCommand, tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    """There is nothing to write, and why is said."""
    store.write([make_measurement(1, runtimes=(10.0,))])
    result = diode("export", "--format", "torch-diode", "-o", str(tmp_path / "out.json"))
    assert result.code == 1
    assert "nothing fits into a data set; 1 timings left out: vendor kernels" in result.err
    assert not (tmp_path / "out.json").exists()


def test_the_suffix_says_msgpack(
    store: Store, diode: RunCommand, tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    """No other format has that name."""
    store.write([make_measurement(1)])
    out = tmp_path / "out.msgpack"
    assert diode("export", "-o", str(out)).code == 0
    assert msgpack.unpackb(out.read_bytes()).keys() == {"hardware", "version"}
