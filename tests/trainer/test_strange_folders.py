"""Strange entries among models and in a folder of training data: each is told, and none stops or delays the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import samples
from diode_store.exchange import jsonl
from diode_trainer import catalogue
from diode_trainer.card import MATMUL_PURPOSE
from diode_trainer.data.from_files import Files, read_files
from diode_trainer.training import checkpoints
from strange import deep_folder, everything_in, strange_entries

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand


@pytest.mark.parametrize("suffix", [".pt", ".json"])
def test_models_are_listed_beside_what_is_strange(
    diode: RunCommand, trained: Path, tmp_path: Path, suffix: str
) -> None:
    """A good model is the first, and each strange checkpoint has its line; nothing is read that never ends."""
    strange_entries(trained.parent, tmp_path / "outside", suffix)
    before = everything_in(tmp_path / "outside")
    assert [model.path for model in catalogue.known_models(MATMUL_PURPOSE)] == [trained]
    names = {path.name for path in catalogue.list_models()}
    assert trained.name in names
    for args in (("models", "list"), ("models", "list", "--json")):
        ended = diode(*args)
        assert (ended.code, trained.stem in ended.out, "\x1b" in ended.out + ended.err) == (0, True, False)
    assert diode("models", "verify").code == (1 if suffix == ".pt" else 0)
    assert everything_in(tmp_path / "outside") == before


def test_models_below_a_folder_deeper_than_python_can_recurse(trained: Path) -> None:
    """The folders of models are searched to the end."""
    with deep_folder(trained.parent / "deep"):
        assert catalogue.list_models() == [trained]


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".msgpack", ".parquet", ".jsonl.gz", ".seg"])
def test_training_data_is_read_beside_what_is_strange(tmp_path: Path, suffix: str) -> None:
    """The good file is used, and what could not be read is told, file by file."""
    folder = tmp_path / "data"
    folder.mkdir()
    strange_entries(folder, tmp_path / "outside", suffix)
    before = everything_in(tmp_path / "outside")
    with (folder / "good.jsonl").open("wb") as stream:
        jsonl.write(stream, [samples.measurement(1)])
    files = Files.in_folder(folder, ("jsonl", suffix.removesuffix(".gz").removeprefix(".")))
    read = read_files(files, samples.measurement(1).hardware)
    assert [each.problem for each in read.measurements] == [samples.measurement(1).problem]
    assert any("loop" in line and "Too many levels of symbolic links" in line for line in read.left_out)
    assert len(read.left_out) == len(files.paths) - 1
    assert everything_in(tmp_path / "outside") == before


def test_checkpoints_of_a_run_lie_beside_what_is_strange(tmp_path: Path) -> None:
    """They are looked for by name, and what is left is found."""
    model = tmp_path / "model.pt"
    folder = checkpoints.folder_beside(model)
    folder.mkdir()
    strange_entries(folder, tmp_path / "outside", ".fit")
    assert isinstance(checkpoints.are_left(model), bool)
