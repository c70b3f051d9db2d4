"""What a command learns from or judges by: the options that say it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from upstream_v1 import checkpoint

from diode_trainer import artifact

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand

QUICK = ("--num-epochs", "2", "--hidden-dim", "8", "--num-layers", "1", "--model-type", "base", "--folds", "0")


@pytest.fixture
def folder(filled: str, diode: RunCommand, tmp_path: Path) -> Path:
    """Return a folder with the 24 problems of the warehouse as Parquet, and the same as upstream's data set."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("rows.parquet", "dataset.msgpack"):
        assert diode("export", "-o", str(folder / name)).code == 0
    return folder


def test_training_on_a_folder(diode: RunCommand, folder: Path, tmp_path: Path) -> None:
    """Upstream's options work as they did, and the card's command makes the same model again, byte for byte."""
    one, two = tmp_path / "one.pt", tmp_path / "two.pt"
    extensions = ("--file-extensions", "json", "msgpack", "jsonl", "parquet")
    result = diode("train", "--data-dir", str(folder), *extensions, "--model", str(one), *QUICK)
    assert result.code == 0, result.err
    assert "hardware: NVIDIA H200 (sm_90, 132 multiprocessors)" in result.err
    card = artifact.load(one).card
    assert card.data["datasets"] == ["dataset.msgpack", "synthetic"]
    assert f"--data-dir {folder} --file-extensions json msgpack jsonl parquet --folds 0" in card.command
    assert diode("train", *card.command.split()[1:], "-o", str(two)).code == 0
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.long
@pytest.mark.parametrize(
    "extensions",
    [("parquet", "jsonl"), ("parquet,jsonl",), (".Parquet",), ("jsonl", "--file-extensions", "parquet")],
    ids=" ".join,
)
def test_ways_to_name_extensions(diode: RunCommand, trained: Path, folder: Path, extensions: tuple[str, ...]) -> None:
    """Words, commas, dots, capitals and the option given twice all name kinds of files."""
    command = ("evaluate", "--file-extensions", *extensions, "--model", str(trained), "--data-dir", str(folder))
    result = diode(*command, "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["problems"] == 24


@pytest.mark.long
def test_several_named_files(diode: RunCommand, trained: Path, folder: Path, tmp_path: Path) -> None:
    """--dataset takes several files, of several formats."""
    files = [str(folder / "rows.parquet"), str(folder / "dataset.msgpack")]
    result = diode("evaluate", "--dataset", *files, "--model", str(trained), "--regime", "all", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["problems"] == 48  # an upstream data set does not say its environment


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--data-dir", "d", "--dataset", "f"), "give files or a folder, not both"),
        (
            ("--data-dir", "d", "--file-extensions", "json", "csv"),
            "unknown: 'csv'; known: json, jsonl, ndjson",
        ),
        (("--hardware", "h200", "--file-extensions", "json"), "applies to --data-dir only"),
        (("--op", "mm"), "--hardware or --dataset or --data-dir"),
        (("--data-dir", "d", "json"), "unexpected extra argument"),
    ],
)
@pytest.mark.parametrize("command", [("train",), ("evaluate", "--model", "m")], ids=lambda command: command[0])
def test_bad_usage(diode: RunCommand, command: tuple[str, ...], options: tuple[str, ...], expected: str) -> None:
    """Options that do not go together are bad usage, told before anything is read."""
    result = diode(*command, *options)
    assert (result.code, result.out) == (2, "")
    assert expected in " ".join(result.err.split())


def test_an_empty_folder(diode: RunCommand, tmp_path: Path) -> None:
    """A folder without data is one line and exit status 1."""
    result = diode("train", "--data-dir", str(tmp_path))
    kinds = ".json, .jsonl, .msgpack, .parquet"
    expected = f"error: --data-dir {tmp_path}: holds no file that ends in {kinds}; name others with --file-extensions\n"
    assert (result.code, result.err) == (1, expected)


def test_left_out_is_told(diode: RunCommand, trained: Path, folder: Path) -> None:
    """A file that cannot be read does not go by silently."""
    (folder / "a.json").write_text("{}")
    (folder / "dataset.msgpack").unlink()
    result = diode("evaluate", "--data-dir", str(folder), "--model", str(trained))
    assert result.code == 0, result.err
    assert result.err.startswith(f"left out {folder / 'a.json'}:1: ")


def test_upstreams_model_beside_ours(diode: RunCommand, filled: str, tmp_path: Path) -> None:
    """What upstream's model cannot rank is told: the ops and the kernels that it never chooses."""
    import torch

    path = tmp_path / "v1_model.pt"
    torch.save(checkpoint(), path)
    result = diode("evaluate", "--model", str(path), "--hardware", "h200")
    assert result.code == 0, result.err
    assert result.out.splitlines()[1].startswith("v1_model ")
    assert "note: v1_model ranks triton::mm on mm only: it never chooses aten::mm\n" in result.err


def test_nothing_that_upstreams_model_ranks(diode: RunCommand, jsonl_path: Path, tmp_path: Path) -> None:
    """On other ops it cannot be judged at all; among others they are left out and counted."""
    import torch

    path = tmp_path / "v1_model.pt"
    torch.save(checkpoint(), path)
    command = ("evaluate", "--model", str(path), "--dataset", str(jsonl_path), "--hardware", "h200")
    refused = diode(*command, "--op", "bmm")
    assert (refused.code, refused.err.splitlines()[-1]) == (
        1,
        "error: v1_model ranks triton::mm on mm only; of 1 problem here none is of these",
    )
    result = diode(*command, "--json")
    assert json.loads(result.out)["problems"] == 4
    assert "2 problems of 6 left out; it never chooses aten::mm" in result.err
