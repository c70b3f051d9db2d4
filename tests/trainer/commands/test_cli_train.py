from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from synthetic import learnable, measurement_of

from diode_store.errors import ModelError, SettingsError
from diode_trainer import artifact
from diode_trainer.commands.tables import ERRORS_HEADER, HEADER
from diode_trainer.jobs.job import command_line, resolve_device
from diode_trainer.jobs.naming import checked_name, model_name, output_path

if TYPE_CHECKING:
    from conftest import CommandResult, RunCommand
    from diode_store.warehouse.store import Store

QUICK = ("--num-epochs", "5", "--hidden-dim", "8", "--num-layers", "1", "--model-type", "base")


@pytest.fixture
def train(diode: RunCommand) -> Any:
    """Return a function that trains quickly with more options."""

    def run(*options: str) -> CommandResult:
        return diode("train", *QUICK, *options)

    return run


def test_five_folds(train: Any, filled: str) -> None:
    """The tables hold the model beside its baselines, and the model is where it says."""
    result = train("--hardware", "h200", "--name", "mine", "--seed", "1")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == "All choices: 24 problems, pooled over 5 folds"
    assert lines[1].split() == " ".join(HEADER).split()
    assert lines[2].startswith("mine ")
    assert {"vendor only", "k-config cover", "nearest problem", "ranking of other folds", "random"} <= {
        line.split("  ")[0] for line in lines[3 : lines.index("Triton choices only: 24 problems, pooled over 5 folds")]
    }
    assert [line.split() for line in lines if line.startswith("predicted times")] == [
        " ".join(ERRORS_HEADER).split()
    ] * 2
    path = Path(lines[-4].split()[1])
    assert lines[-1] == "hook   asks it first on NVIDIA H200"
    assert lines[-3].split() == ["card", str(path.with_suffix(".json"))]
    assert lines[-2].split() == ["losses", str(path.with_suffix(".history.json"))]
    assert artifact.load(path).card.name == "mine"
    assert "hardware: NVIDIA H200 (sm_90, 132 multiprocessors)" in result.err
    assert "data: 24 problems, 360 timings (0 failed), mm, bfloat16" in result.err
    assert "left out Inductor DEFAULT: the data holds" in result.err
    assert "fitting 5 folds and the final model, at most 5 epochs each" in result.err


def test_families_held_out(train: Any, store: Store, database_url: str, tmp_path: Path) -> None:
    """With --split family the tables say what was held out, the card too, and its command makes the same split."""
    families = ("gpt2-xl", "llama3-8b", "t5-base")
    store.write(replace(measurement_of(i, example), family=families[i % 3]) for i, example in enumerate(learnable(24)))
    result = train(
        *("--hardware", "h200", "--database", database_url, "--split", "family", "--folds", "3", "-o", str(tmp_path))
    )
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == "All choices: 24 problems, pooled over 3 folds of families"
    assert any(line.startswith("evaluated on families it had not seen, ") for line in lines)
    assert "fitting 3 folds of families and the final model" in result.err
    card = artifact.load(tmp_path / "nvidia-h200.pt").card
    assert (card.metrics["split"], "--split family" in card.command) == ("family", True)


def test_too_few_families(train: Any, filled: str, tmp_path: Path) -> None:
    """Measurements that name no family cannot be split by it, which is said before anything is fitted or written."""
    result = train("--hardware", "h200", "--split", "family", "-o", str(tmp_path / "m.pt"))
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines()[-1] == (
        "error: 0 families cannot be split into 5 folds; measure another with"
        " `diode-collect --family NAME`, or use --split problem"
    )
    assert not (tmp_path / "m.pt").exists()


def test_json(train: Any, filled: str) -> None:
    """Scripts get everything as one object."""
    result = train("--hardware", "NVIDIA H200", "--name", "mine", "--folds", "1", "--json")
    assert result.code == 0, result.err
    shown = json.loads(result.out)
    assert shown["evaluation"]["folds"] == 1
    assert shown["evaluation"]["all_choices"]["problems"] == 5
    assert {"vendor_only", "config_cover", "nearest_problem", "fold_ranking", "random"} <= set(
        shown["evaluation"]["all_choices"]["baselines"]
    )
    assert shown["evaluation"]["split"] == "problem"
    assert shown["evaluation"]["all_choices"]["slices"]["op"]["mm"]["problems"] == 5
    assert shown["data"]["problems"] == 24
    assert shown["data"]["datasets"] == ["synthetic"]
    assert artifact.load(shown["model"]).sha256 == shown["sha256"]
    assert len(shown["fold_seconds"]) == 1


def test_card(train: Any, filled: str, tmp_path: Path) -> None:
    """The card says what the model covers, how it did, and how to make it again."""
    result = train("--hardware", "h200", "--name", "mine", "--output", str(tmp_path), "--op", "mm", "--dtype", "bf16")
    assert result.code == 0, result.err
    card = artifact.load(tmp_path / "mine.pt").card
    assert card.command == (
        "diode-train --hardware h200 --op mm --dtype bf16 --folds 5 --split problem --name mine --model-type base"
        " --seed 42 --num-epochs 5 --hidden-dim 8 --num-layers 1"
    )
    assert (card.model_type, card.torch, card.licence) == ("base", torch.__version__, "Apache-2.0")
    assert [(d.name, d.multiprocessors) for d in card.hardware] == [("NVIDIA H200", 132)]
    assert (card.ops, card.dtypes, card.domain.templates) == (("mm",), ("bfloat16",), ("aten::mm", "triton::mm"))
    assert (card.metrics["folds"], card.metrics["all_choices"]["problems"]) == (5, 24)
    assert set(card.baselines) == {"all_choices", "triton_only"}
    assert card.data["measurements"] == 24
    assert card.training["hidden_layer_widths"] == [8]


def test_the_cards_command_makes_the_model_again(train: Any, diode: RunCommand, filled: str, tmp_path: Path) -> None:
    """Running what the card says gives the same checkpoint, byte for byte."""
    assert train("--hardware", "h200", "--folds", "0", "--name", "mine", "-o", str(tmp_path / "one.pt")).code == 0
    command = artifact.load(tmp_path / "one.pt").card.command.split()
    assert command[0] == "diode-train"
    assert diode("train", *command[1:], "-o", str(tmp_path / "two.pt")).code == 0
    assert (tmp_path / "one.pt").read_bytes() == (tmp_path / "two.pt").read_bytes()


def test_no_folds(train: Any, filled: str) -> None:
    """Without folds nothing is judged, and the card has no figures."""
    result = train("--hardware", "h200", "--folds", "0", "--name", "mine")
    assert result.code == 0, result.err
    assert result.out.splitlines()[0].startswith("fitted 24 problems in ")
    assert artifact.load(result.out.splitlines()[1].split()[1]).card.metrics == {}


def test_a_file_instead_of_a_warehouse(train: Any, jsonl_path: Path, tmp_path: Path) -> None:
    """A file of too few problems is refused like too small a warehouse."""
    result = train("--dataset", str(jsonl_path), "--hardware", "h200", "--folds", "0", "-o", str(tmp_path / "m.pt"))
    assert result.code == 1
    assert result.err.splitlines()[-1].startswith("error: 6 problems are too few to learn from, 10 needed;")
    assert not (tmp_path / "m.pt").exists()


def test_old_option_names(diode: RunCommand, filled: str, tmp_path: Path) -> None:
    """The names of the options that users know from before still work."""
    result = diode(
        "train",
        *("--hardware-name", "NVIDIA H200"),
        *("--op-name", "mm"),
        *("--model", str(tmp_path / "m.pt")),
        *("--model-type", "deep"),
        *("--batch-size", "8", "--num-epochs", "1", "--learning-rate", "0.001", "--weight-decay", "0.01"),
        *("--patience", "3", "--hidden-dim", "8", "--num-layers", "2", "--seed", "3", "--device", "cpu"),
        *("--folds", "0"),
    )
    assert result.code == 0, result.err
    training = artifact.load(tmp_path / "m.pt").card.training
    expected = {"batch_size": 8, "epochs": 1, "learning_rate": 0.001, "weight_decay": 0.01, "patience": 3, "seed": 3}
    assert {name: training[name] for name in expected} == expected
    assert training["hidden_layer_widths"] == [8, 8]


def test_known_models_are_baselines(train: Any, filled: str, shipped: Path, trained: Path) -> None:
    """The models that the hook would ask are judged beside the new one; one that learned from all is left out."""
    card = json.loads(trained.with_suffix(".json").read_text())
    folder = shipped / trained.parent.name
    folder.mkdir()
    for name, regret in (("a_good", 1.02), ("z_poor", 1.05)):
        metrics = {"all_choices": {"regret": {"1": {"geomean": regret}}}}
        (folder / f"{name}.pt").write_bytes(trained.read_bytes())
        (folder / f"{name}.json").write_text(json.dumps({**card, "metrics": metrics}))
    result = train("--hardware", "h200", "--folds", "1", "--name", "mine")
    assert result.code == 0, result.err
    left_out = [line.partition(":")[0] for line in result.err.splitlines() if "was trained on 5 of these 5" in line]
    assert left_out == [f"left out model {name}" for name in ("a_good", "z_poor", "quick")]
    assert artifact.load_shipped().path == folder / "a_good.pt"


def test_what_the_hook_does_with_it_is_said(train: Any, filled: str, trained: Path, tmp_path: Path) -> None:
    """Another model of the device may be asked first; a file elsewhere is not looked for."""
    card = json.loads(trained.with_suffix(".json").read_text())
    better = {"all_choices": {"regret": {"1": {"geomean": 1.0}}}}
    trained.with_suffix(".json").write_text(json.dumps({**card, "metrics": better}))
    lines = train("--hardware", "h200", "--folds", "0", "--name", "mine").out.splitlines()
    assert lines[-1] == "hook   asks quick first on NVIDIA H200; `diode models default mine` changes that"
    lines = train("--hardware", "h200", "--folds", "0", "-o", str(tmp_path / "here.pt")).out.splitlines()
    assert lines[-1] == "hook   does not look for it there; name it: DIODE_MODEL, or `install_diode_choices`"


def test_a_narrow_space_is_said(train: Any, filled: str) -> None:
    """These problems have 15 Triton configs; a model of that cannot rank what the hook does."""
    result = train("--hardware", "h200", "--folds", "0", "--name", "mine")
    assert "note: only 14 Triton configs were measured, and the hook ranks some 1,400; train on" in result.err


def test_the_file_names_the_model(train: Any, filled: str, tmp_path: Path) -> None:
    """Without --name the output file's stem stands in the table, on the card and in its command."""
    result = train("--hardware", "h200", "--folds", "1", "-o", str(tmp_path / "quickstart_model.pt"))
    assert result.code == 0, result.err
    assert result.out.splitlines()[2].startswith("quickstart_model ")
    card = artifact.load(tmp_path / "quickstart_model.pt").card
    assert (card.name, "--name quickstart_model" in card.command) == ("quickstart_model", True)


def test_the_hardware_names_the_model(train: Any, filled: str) -> None:
    """Without --name and a file, the model is called as the hardware it is for: two GPUs make two models."""
    result = train("--hardware", "h200", "--folds", "0", "--json")
    assert result.code == 0, result.err
    path = Path(json.loads(result.out)["model"])
    assert (path.name, artifact.load(path).card.name) == ("nvidia-h200.pt", "nvidia-h200")


def test_only_force_replaces_a_model(train: Any, filled: str, tmp_path: Path) -> None:
    """A model that is there stays, byte for byte, unless --force is given; the error names both remedies."""
    path = tmp_path / "m.pt"
    options = ("--hardware", "h200", "--folds", "0", "-o", str(path))
    assert train(*options, "--seed", "1").code == 0
    card, content = artifact.load(path).card, path.read_bytes()
    result = train(*options)
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines() == [
        f"error: --output {path}: there is a model of {card.created_at[:10]}; --force replaces it, --name adds another"
    ]
    assert path.read_bytes() == content
    assert train(*options, "--force").code == 0
    assert path.read_bytes() != content
    assert "--force" not in artifact.load(path).card.command
    (tmp_path / "m.json").write_text("[]")
    assert "there is a model of unknown date" in train(*options).err


@pytest.mark.parametrize("hardware", ["h200", "NVIDIA H200"])
def test_a_model_of_the_hardware_is_refused_before_data_is_read(train: Any, filled: str, hardware: str) -> None:
    """Nothing is read to find that the model which the hardware would name is there."""
    assert train("--hardware", hardware, "--folds", "0").code == 0
    result = train("--hardware", hardware, "--folds", "0")
    assert (result.code, len(result.err.splitlines())) == (1, 1)
    assert "nvidia-h200.pt: there is a model of " in result.err


# --- what goes wrong


def test_no_hardware_named(diode: RunCommand) -> None:
    """Without a device or a file there is nothing to train on: bad usage."""
    result = diode("train", "--folds", "0")
    assert result.code == 2
    assert "--hardware or --dataset or --data-dir" in result.err


def test_unknown_hardware_lists_what_there_is(train: Any, filled: str) -> None:
    """A name that matches nothing gets the list."""
    result = train("--hardware", "NVIDIA A100")
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "error: --hardware: no hardware matches 'NVIDIA A100'; there is: NVIDIA H200 (sm_90, 132"
        " multiprocessors); to add a GPU,"
        " run `diode tune` on it, or `diode-collect` for its timings alone\n"
    )


def test_output_of_another_suffix(train: Any, filled: str, tmp_path: Path) -> None:
    """A file that could not be told for a model is bad usage, before anything is made; a folder may be called so."""
    path = tmp_path / "m.bin"
    result = train("--hardware", "h200", "--folds", "0", "-o", str(path))
    assert (result.code, path.exists()) == (2, False)
    assert "give a file that ends in .pt" in result.err
    path.mkdir()
    assert train("--hardware", "h200", "--folds", "0", "-o", str(path)).code == 0
    assert (path / "nvidia-h200.pt").is_file()


def test_unwritable_output(train: Any, filled: str, tmp_path: Path) -> None:
    """A model that cannot be written is an error, not a traceback."""
    (tmp_path / "file").touch()
    result = train("--hardware", "h200", "--folds", "0", "-o", str(tmp_path / "file" / "m.pt"))
    assert result.code == 1
    assert "cannot write the model" in result.err


def test_unknown_device(train: Any, filled: str) -> None:
    """A device that this machine lacks is refused before anything is fitted."""
    result = train("--hardware", "h200", "--device", "abacus")
    assert result.code == 1
    assert "cannot fit on device 'abacus'" in result.err


@pytest.mark.parametrize(
    "options",
    [
        ("--folds", "51"),
        ("--model-type", "wide"),
        ("--num-epochs", "0"),
        ("--learning-rate", "inf"),
        ("--learning-rate", "nan"),
        ("--weight-decay", "nan"),
        ("--learning-rate", "1e6"),
        ("--weight-decay", "inf"),
        ("--seed", "99999999999999999999"),
        ("--hidden-dim", "100000000"),
        ("--num-layers", "17"),
        ("--members", "0"),
        ("--members", "65"),
    ],
)
def test_bad_usage(diode: RunCommand, options: tuple[str, str]) -> None:
    """Values out of range exit with 2."""
    assert diode("train", "--hardware", "h200", *options).code == 2


def test_installed_command() -> None:
    """`diode-train` is `diode train` by the name that scripts use, and starts without torch."""
    executable = Path(sys.executable).with_name("diode-train")
    finished = subprocess.run([executable, "--help"], capture_output=True, text=True, check=True)
    assert 'diode-train --hardware "NVIDIA H100"' in finished.stdout
    script = "import sys, diode_trainer.commands.train; print({'torch', 'numpy', 'duckdb'} & set(sys.modules))"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert finished.stdout == "set()\n"


# --- parts


def test_output_path(tmp_path: Path) -> None:
    """A file is taken as it is, a folder gets the name, and nothing means the user's models."""
    assert output_path(tmp_path / "a.pt", "name") == tmp_path / "a.pt"
    assert output_path(tmp_path, "name") == tmp_path / "name.pt"
    (tmp_path / "folder.pt").mkdir()
    assert output_path(tmp_path / "folder.pt", "name") == tmp_path / "folder.pt" / "name.pt"
    default = output_path(None, "name")
    assert default.parts[-4:] == ("torch-diode", "models", "matmul_kernel_runtime_prediction", "name.pt")


def test_model_name(tmp_path: Path) -> None:
    """What is asked for wins, then the file's stem, then the hardware."""
    h200, h100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
    assert model_name(None, None, [h200]) == model_name(None, tmp_path, [h200]) == "nvidia-h200"
    assert model_name(None, None, [h100, h200]) == "nvidia-h100-and-h200"
    assert model_name(None, tmp_path / "h200.v2.pt", [h200]) == "h200.v2"
    assert model_name("mine.pt", tmp_path / "other.pt", [h200]) == "mine"


@pytest.mark.parametrize("name", ["", " ", "a/b", "a\\b", ".hidden", "..", "a\nb"])
def test_bad_model_name(train: Any, name: str) -> None:
    """What is no name of a file is refused in one line."""
    with pytest.raises(SettingsError, match="is not a valid model name"):
        checked_name(name)
    result = train("--hardware", "h200", "--name", name)
    assert (result.code, result.err.splitlines()[-1].count("--name")) == (1 if name.strip() else 2, 1)


def test_command_line() -> None:
    """Options without a value are left out, switches have none, words are quoted."""
    options = {"--hardware": "NVIDIA H200", "--op": None, "--all-matches": True, "--x": False, "--seed": 0}
    assert command_line("diode-train", options) == "diode-train --hardware 'NVIDIA H200' --all-matches --seed 0"


def test_resolve_device() -> None:
    """``auto`` is what this machine has."""
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ModelError, match="use --device cpu"):
        resolve_device("cuda:99")
