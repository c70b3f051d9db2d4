"""`diode predict`: what is printed of one product, of several, and of what cannot be asked."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from diode_collectors.problems.problem import parse_problem
from diode_integration import preview
from diode_integration.choices import DiodeInductorChoices
from diode_integration.inductor import as_if_cuda
from diode_integration.preview import Previewer
from diode_store.devices.known import known_device
from diode_store.records import Hardware
from diode_store.warehouse.store import Store
from samples import MEASURED_AT, measurement, timings_of
from stand_ins import KNOWS_OTHERS, TileModel, card_of

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand

ONE = ("--op", "mm", "--m", "16", "--n", "4096", "--k", "4096", "--layout", "nt", "--hardware", "h200")


def test_one_product(diode: RunCommand, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels by rank, with the times that the warehouse has of them."""
    hardware = known_device("h200")
    assert hardware is not None
    (found,) = Previewer(hardware, top=3).previews([parse_problem("mm:16x4096x4096/nt/bf16").problem()])
    best, second, _ = (choice.config for choice in found.ranked[:3])
    with Store.open(database_url) as store:
        timings = timings_of({best: 11.25, second: 12.5})
        fields = {"problem": found.problem, "timings": timings, "hardware": hardware, "measured_at": MEASURED_AT}
        store.write([measurement(1, **fields)])
    monkeypatch.setenv("DIODE_DATABASE_URL", database_url)
    result = diode("predict", *ONE, "--top", "3")
    assert result.code == 0, result.err
    first, header, *rows = result.out.splitlines()
    assert re.match(r"mm bf16 16x4096x4096 nt: keeps \d+ of \d+ kernels: ", first)
    assert header.split() == ["rank", "kernel", "predicted", "us", "measured", "us", "kept"]
    assert rows[0].split()[-2:] == ["11.25", "yes"]
    assert "12.50" in rows[1].split()
    assert "measured: 2 kernels in torch 2.11.0+cu130, regime unknown; the fastest is " in result.err
    assert "model: v4_model; device: NVIDIA H200; mode: adaptive" in result.err
    (plain,) = json.loads(diode("predict", *ONE, "--top", "3", "--json").out)
    assert [each["measured_us"] for each in plain["ranked"][:3]] == [11.25, 12.5, None]
    assert plain["ranked"][0]["kept"] is True
    assert plain["measured"]["fastest_us"] == 11.25
    assert plain["decided_by"] == "model"


@pytest.mark.long
def test_a_device_that_only_the_warehouse_knows(diode: RunCommand, database_url: str) -> None:
    """By its name or an alias of the user's; a name that both know means the measured one."""
    own = Hardware("nvidia", "NVIDIA Own 1", "sm_90", 144)
    with Store.open(database_url) as store:
        store.write([measurement(1, hardware=own)])
    assert diode("hardware", "alias", "NVIDIA Own 1", "mine", "--database", database_url).code == 0
    asked = ("predict", "--shape", "mm:8x8x8", "--database", database_url, "--hardware")
    for name in ("mine", "NVIDIA Own 1"):
        result = diode(*asked, name)
        assert result.code == 0, result.err
        assert "; by a model of NVIDIA H" in result.out
        known = "no model knows NVIDIA Own 1, but one knows a similar device: "
        near = f"{known}number of multiprocessors 144 is not 132, which the model"
        assert near in " ".join(result.err.split())
    assert "device: NVIDIA H200;" in diode(*asked, "h200").err


def test_several_devices_of_a_name(diode: RunCommand, database_url: str) -> None:
    """Two that the warehouse has are an error that lists them."""
    with Store.open(database_url) as store:
        for number, size in enumerate((40, 80)):
            device = Hardware("nvidia", f"NVIDIA Own {size}GB", "sm_90", 144)
            store.write([measurement(number, hardware=device)])
    result = diode("predict", "--shape", "mm:8x8x8", "--database", database_url, "--hardware", "nvidia own")
    assert result.code == 1
    assert "NVIDIA Own 40GB" in result.err
    assert "NVIDIA Own 80GB" in result.err


def test_a_warehouse_that_cannot_be_read(diode: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one that is typed has to be there; without it no times are measured, which is said."""
    (tmp_path / "broken.db").write_text("no database")
    asked = ("predict", "--shape", "mm:8x8x8", "--hardware", "h200")
    assert diode(*asked, "--database", str(tmp_path / "broken.db")).code == 1
    monkeypatch.setenv("DIODE_DATABASE_URL", str(tmp_path / "broken.db"))
    result = diode(*asked)
    assert result.code == 0, result.err
    assert "no measured times: " in result.err
    assert "mm bf16 8x8x8 nn: keeps " in result.out


def test_a_cache_that_cannot_be_written(
    diode: RunCommand, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was predicted is printed all the same."""
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DIODE_CACHE", str(tmp_path / "file"))
    monkeypatch.setenv("DIODE_DATABASE_URL", database_url)
    result = diode("predict", "--shape", "mm:8x8x8", "--hardware", "h200")
    assert result.code == 0, result.err
    assert "no measured times: " in result.err
    assert "mm bf16 8x8x8 nn: keeps " in result.out


def test_several_products(diode: RunCommand, tmp_path: Path) -> None:
    """A line each; without a warehouse no time is measured, which is said."""
    shapes = tmp_path / "shapes.txt"
    shapes.write_text("mm:64x64x64/nn/bf16\nmm:64x64x64/tt/bf16\n")
    result = diode("predict", "--shapeset", str(shapes), "--hardware", "h200")
    assert result.code == 0, result.err
    assert "no measured times: " in result.err
    assert "create it with `diode db upgrade" in result.err
    _, known, abstained = result.out.splitlines()
    assert known.startswith("mm bf16 64x64x64 nn ")
    assert "triton::mm" in known or "aten::mm" in known
    assert "vendor's" in abstained
    assert "layout: the model knows nn, nt, tn, not tt" in abstained
    plain = json.loads(diode("predict", "--shapeset", str(shapes), "--hardware", "h200", "--json").out)
    assert [each["decided_by"] for each in plain] == ["model", "vendor"]
    assert plain[1]["ranked"] == []


def test_without_triton(diode: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU build of torch brings no Triton; the same kernels are ranked."""
    expected = diode("predict", *ONE, "--json")
    assert expected.code == 0, expected.err
    without_triton(monkeypatch)
    monkeypatch.setattr(as_if_cuda, "find_spec", lambda _name: None)
    assert diode("predict", *ONE, "--json") == expected


def test_a_hook_that_fails(diode: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure that a compile survives is an error here, for one product and for several."""
    without_triton(monkeypatch)  # but find_spec still finds it, so that Inductor lists with a config it cannot make
    for more in ((), ("--shape", "mm:8x8x8")):
        result = diode("predict", *ONE, *more)
        assert (result.code, result.out) == (1, "")
        said = "error: mm cannot be ranked: error: TypeError: object() takes no arguments; run `diode doctor`"
        assert said in result.err.splitlines()[-1]


def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give Inductor's lists the config that they have where Triton cannot be imported."""
    import torch._inductor.kernel.mm  # noqa: F401 - registers the lists

    for kind in type(as_if_cuda.heuristic_registry().get_template_heuristic("triton::mm", "cuda", "mm")).__mro__:
        if hasattr(sys.modules[kind.__module__], "TritonConfig"):
            monkeypatch.setattr(sys.modules[kind.__module__], "TritonConfig", object)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Usage: diode predict"),
        (("--json",), "name a product: --op mm --m 16 --n 4096 --k 4096, --shape, --shapeset or --family"),
        (("--op", "mm", "--m", "16"), "--op mm needs --n and --k too"),
        (("--m", "16"), "--m needs --op too, such as --op mm"),
        (("--op", "conv", "--m", "1", "--n", "1", "--k", "1"), "unknown op 'conv'; known ops: mm, addmm, bmm, baddbmm"),
        (("--shape", "mm:16x16"), "'mm:16x16' is not a shape"),
        (
            ("--op", "scaled_mm", "--m", "16", "--n", "64", "--k", "64", "--layout", "nn"),
            "scaled_mm takes the layout nt only, not nn: A by rows, B by columns",
        ),
        (
            ("--op", "grouped_mm", "--m", "16", "--n", "64", "--k", "64", "--dtype", "e4m3"),
            "'e4m3' is neither a",
        ),
        (
            ("--shape", "mm:8x8x8", "--hardware", "voodoo"),
            "no device is known by the name 'voodoo'; known: NVIDIA B200",
        ),
        (("--shape", f"mm:{10**20}x8x8"), f"mm:{10**20}x8x8/nn/bf16: the matrices are larger than any memory"),
        (("--op", "bmm", "--m", "8", "--n", "8", "--k", "8", "--b", str(10**19)), "larger than any memory"),
        (("--shape", "mm:8x8x8", "--hardware", "h200", "--model", "none"), "no model 'none'"),
        (("--shape", "mm:8x8x8", "--hardware", "h200", "--mode", "fast"), "mode must be one of "),
        (("--shape", "mm:8x8x8", "--hardware", "h200", "--database", "none.db"), "none.db holds no warehouse yet"),
    ],
)
def test_bad_input(
    diode: RunCommand, arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One line that says what is wrong and what would be right."""
    monkeypatch.chdir(tmp_path)
    result = diode("predict", *arguments)
    assert result.code != 0
    assert said in result.out + result.err
    assert "Traceback" not in result.err


def test_other_ops(diode: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that knows them ranks the kernels of a GPU; dimensions and the missing skew are said."""
    knowing = TileModel(card=card_of(KNOWS_OTHERS), vendor_us=50.0)

    def handler(_path: object = None, **options: object) -> DiodeInductorChoices:
        return DiodeInductorChoices(**{"model": knowing, **options})

    monkeypatch.setattr(preview, "DiodeInductorChoices", handler)
    sizes = ("--m", "64", "--n", "256", "--k", "512", "--hardware", "h200", "--top", "3")
    scaled = diode("predict", "--op", "scaled_mm", "--dtype", "e5m2+e4m3", *sizes)
    assert scaled.code == 0, scaled.err
    assert scaled.out.startswith("scaled_mm e5m2+e4m3 64x256x512 nt row → bf16: keeps ")
    assert "triton::mm 64x64x32 s3 w4" in scaled.out
    (plain,) = json.loads(diode("predict", "--op", "scaled_mm", *sizes, "--json").out)
    assert plain["problem"]["dimensions"] == {"out_dtype": "bfloat16", "scaling": "row"}
    both = ("--shape", "grouped_mm:64x256x128:4/skew1", "--shape", "mm_plus_mm:64x64x64")
    several = diode("predict", *both, "--hardware", "h200")
    assert several.code == 0, several.err
    assert {line.split()[0] for line in several.out.splitlines()[1:]} >= {"grouped_mm", "mm_plus_mm"}
    assert "a compile does not know the skew of groups" in several.err


@pytest.mark.parametrize(
    ("shape", "hardware", "said"),
    [
        ("scaled_grouped_mm:64x256x128:4", "h200", "mm, mm_plus_mm, scaled_mm, not scaled_grouped_mm"),
        ("scaled_mm:16x64x256", "h200", "shape: N=64 is outside 272 to 57344, which the model knows of scaled_mm"),
        (
            "scaled_mm:16x512x512/1x128+128x128",
            "h200",
            "dimension: of scaled_mm the model knows the scaling row, tensor, not 1x128/128x128",
        ),
        (
            "scaled_mm:16x64x256",
            "NVIDIA A100-SXM4-80GB",
            "scaled_mm needs compute capability 8.9, and NVIDIA A100-SXM4",
        ),
    ],
)
def test_ops_that_are_not_ranked(diode: RunCommand, shape: str, hardware: str, said: str) -> None:
    """A model without the op, its sizes or scales, and a GPU without it, are an answer and no error."""
    result = diode("predict", "--shape", shape, "--hardware", hardware, "--model", "v4_model")
    assert result.code == 0, result.err
    assert said in result.out


def test_an_op_that_another_device_measured(diode: RunCommand) -> None:
    """The shipped model learned float8 products from an H200: on an H100 it benchmarks more, and zero mode abstains."""
    asked = ("predict", "--shape", "scaled_mm:16x6144x4096/row/fast", "--hardware", "h100", "--model", "v4_model")
    adaptive, zero = diode(*asked), diode(*asked, "--mode", "zero")
    assert "; by a model of NVIDIA H200" in adaptive.out
    assert "keeps the vendor kernel: hardware: scaled_mm on NVIDIA H100 80GB HBM3: L2 cache 50 MiB" in zero.out


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_machine_without_a_gpu(diode: RunCommand) -> None:
    """The device has to be named."""
    result = diode("predict", "--shape", "mm:8x8x8")
    assert result.code == 1
    assert result.err.endswith("error: this machine has no GPU; name a device with --hardware, such as h200\n")
