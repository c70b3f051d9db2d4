from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from synthetic import MM, examples, learnable

from diode_store.errors import DatasetError
from diode_trainer.card import Card, Domain
from diode_trainer.commands.tables import PARTS_HEADER
from diode_trainer.covered import CoveredHardware
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.judging.assess import assess
from diode_trainer.judging.slices import SLICES
from diode_trainer.scoring import Prediction

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand
    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape


class Known:
    """A model that predicts what it was told to."""

    def __init__(self, *predicted: float, seen: tuple[ProblemShape, ...] = (), domain: Domain | None = None) -> None:
        self.predicted = np.array(predicted)
        self.seen = seen
        self.card = Card("known", "test", "base", 1, domain or Domain())

    def predict(self, _shape: ProblemShape, _device: Hardware, columns: ConfigColumns, *, exact: bool) -> Prediction:
        """Return the first of what it was told; a model is judged by all of its members."""
        assert exact
        return Prediction.without_members(self.predicted[: len(columns)])

    def was_trained_on(self, shape: ProblemShape) -> bool:
        """Say whether it was told so."""
        return shape in self.seen


def judged(model: Known, *found: Any, **options: Any) -> Any:
    """Assess a known model by a few problems."""
    return assess(model, ExampleSet(found), **options)  # type: ignore[arg-type]


OTHER = replace(MM, m=512)
LEARNED = frozenset({"config_cover", "nearest_problem", "fold_ranking"})
"""Baselines that need no further package."""


# --- what is shown


def test_figures_by_hand() -> None:
    """It ranks 20 us before 10 us on one problem of two: regret@1 is the root of 2."""
    found = judged(Known(3.0, 1.0, 2.0), examples([40.0, 20.0, 10.0]), examples([40.0, 10.0, 20.0], OTHER))
    assert found.problems == 2
    assert found.standing.model.regret[1].geomean == pytest.approx(math.sqrt(2))
    assert found.standing.model.regret[3].geomean == pytest.approx(1.0)
    assert found.standing.model.within_2pct == 0.5


def test_worst_choices() -> None:
    """The costliest choices come first, with what was chosen, what was best, and the times."""
    found = judged(Known(3.0, 1.0, 2.0), examples([40.0, 20.0, 10.0]), examples([40.0, 30.0, 10.0], OTHER), worst=1)
    (worst,) = found.worst
    assert (worst.shape, worst.regret[1]) == (OTHER, pytest.approx(3.0))
    assert (worst.chosen_us, worst.chosen_predicted_us, worst.best_us) == (30.0, 1.0, 10.0)
    assert worst.chosen.describe() == "triton::mm 16x64x64 s2 w4"


def test_worst_choices_without_vendor() -> None:
    """Where the vendor does not count, it is neither chosen nor best."""
    found = judged(Known(1.0, 3.0, 2.0), examples([5.0, 10.0, 20.0]), vendor=False, worst=5)
    (worst,) = found.worst
    assert (worst.best_us, worst.regret[1]) == (10.0, pytest.approx(2.0))


def test_a_vendor_kernel_among_the_worst_choices() -> None:
    """A vendor's kernel has no parameters to name."""
    assert judged(Known(1.0, 2.0), examples([1.0, 2.0]), worst=1).worst[0].chosen.describe() == "aten::mm"


def test_seen_problems_are_counted_and_can_be_left_out() -> None:
    """Problems it was trained on flatter a model."""
    model = Known(1.0, 2.0, seen=(MM,))
    both = examples([1.0, 2.0]), examples([2.0, 1.0], OTHER)
    assert judged(model, *both).seen == 1
    alone = judged(model, *both, unseen=True)
    assert (alone.problems, alone.seen) == (1, 0)
    assert alone.standing.model.regret[1].geomean == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        (Domain(), ()),
        (Domain(hardware=(CoveredHardware("NVIDIA H200", "sm_90", 132),), ops=("mm",), shapes={"m": (512, 1024)}), ()),
        (Domain(hardware=(CoveredHardware("NVIDIA L4", "sm_89", 58),)), ("hardware NVIDIA H200",)),
        (Domain(ops=("bmm",), dtypes=("float32",)), ("dtype bfloat16", "op mm")),
        (Domain(shapes={"k": (16, 512)}), ("K outside 16 to 512",)),
    ],
)
def test_problems_outside_the_domain_are_counted(domain: Domain, expected: tuple[str, ...]) -> None:
    """What the card does not cover is counted and named; what it leaves empty is open."""
    found = judged(Known(1.0, 2.0, domain=domain), examples([1.0, 2.0]), examples([2.0, 1.0], OTHER))
    assert (found.outside, found.outside_reasons) == (2 if expected else 0, expected)


def test_note_on_problems_outside_the_domain(diode: RunCommand, trained: Path, jsonl_path: Path) -> None:
    """A person is told which problems the model was not made for."""
    result = diode("evaluate", "--model", "quick", "--dataset", str(jsonl_path), "--hardware", "h200", "--op", "bmm")
    assert result.code == 0, result.err
    assert "note: 1 of 1 problem is outside what it was trained on (" in result.err
    assert "op bmm" in result.err


def test_nothing_left_to_judge_by() -> None:
    """If it has seen everything, or nothing can be judged, that is said."""
    with pytest.raises(DatasetError, match="trained on all of these problems, so --unseen leaves none; drop it"):
        judged(Known(1.0, 2.0, seen=(MM,)), examples([1.0, 2.0]), unseen=True)
    with pytest.raises(DatasetError, match="no problem has two configs that ran"):
        judged(Known(1.0, 2.0), examples([1.0, math.inf]))


def test_baselines_of_few_problems_have_nothing_to_learn_from() -> None:
    """With fewer problems than folds a fixed ranking takes the first config."""
    found = judged(Known(1.0, 2.0), examples([4.0, 2.0]))
    assert found.standing.baselines.reports["fold_ranking"].regret[1].geomean == pytest.approx(2.0)


def test_baselines_learn_from_other_problems() -> None:
    """On enough problems a fixed ranking is made from four fifths for the other fifth."""
    dataset = learnable(30)
    found = assess(Known(*range(1, 16)), dataset)  # type: ignore[arg-type]
    reports = found.standing.baselines.reports
    assert reports["fold_ranking"].regret[1].geomean < reports["random"].regret[1].geomean
    assert {name: reports[name].problems for name in LEARNED} == dict.fromkeys(LEARNED, 30)


def test_baselines_learn_from_what_the_model_learned_from() -> None:
    """Where only unseen problems are judged, baselines learn from those that the model had: the first Triton kernel."""
    seen = [examples([40.0, 10.0, 20.0], replace(MM, m=64 * i)) for i in range(1, 9)]
    fresh = [examples([40.0, 20.0, 10.0], replace(OTHER, n=64 * i)) for i in range(1, 9)]
    model = Known(1.0, 2.0, 3.0, seen=tuple(example.shape for example in seen))
    reports = judged(model, *seen, *fresh, unseen=True).standing.baselines.reports
    assert {name: reports[name].regret[1].geomean for name in LEARNED} == pytest.approx(dict.fromkeys(LEARNED, 2.0))


def test_families_alone() -> None:
    """Only the problems of the families that are named are judged, and baselines learn from the others."""
    one = [replace(examples([40.0, 10.0, 20.0], replace(MM, m=64 * i)), family="one") for i in range(1, 9)]
    two = [replace(examples([40.0, 20.0, 10.0], replace(OTHER, n=64 * i)), family="two") for i in range(1, 5)]
    found = judged(Known(3.0, 2.0, 1.0), *one, *two, families=["two"])
    assert (found.problems, found.standing.model.regret[1].geomean) == (4, pytest.approx(1.0))
    assert found.standing.baselines.reports["fold_ranking"].regret[1].geomean == pytest.approx(2.0)
    assert {judgement.family for judgement in found.standing.judgements} == {"two"}


def test_a_family_that_is_not_there() -> None:
    """A family without problems here is refused with those that have some."""
    known = replace(examples([1.0, 2.0]), family="gpt2-xl")
    with pytest.raises(DatasetError, match="no problem of the family 'llama9'; there is: gpt2-xl"):
        judged(Known(1.0, 2.0), known, families=["llama9"])
    with pytest.raises(DatasetError, match="family 'llama9'; these measurements do not name families"):
        judged(Known(1.0, 2.0), examples([1.0, 2.0]), families=["llama9"])


# --- the command


def test_json(diode: RunCommand, trained: Path) -> None:
    """The object has the promised shape; baselines are of the same."""
    result = diode("evaluate", "--model", str(trained), "--hardware", "h200", "--json")
    assert result.code == 0, result.err
    shown = json.loads(result.out)
    assert shown["problems"] == 24
    assert list(shown["regret"]) == ["1", "3", "5", "10"]
    assert set(shown["regret"]["1"]) == {"geomean", "p95", "max"}
    assert {"within_2pct", "within_5pct", "rmse_log", "baselines"} <= set(shown)
    assert {"vendor_only", *LEARNED, "random"} <= set(shown["baselines"])
    assert set(shown["baselines"]["random"]) == {
        "problems",
        "regret",
        "within_2pct",
        "within_5pct",
        "within_noise",
        "share_of_oracle",
    }
    assert shown["seen_in_training"] == 24


def test_no_vendor(diode: RunCommand, trained: Path) -> None:
    """Without the vendor there is no vendor's row."""
    result = diode("evaluate", "--model", str(trained), "--hardware", "h200", "--no-vendor", "--json")
    found = set(json.loads(result.out)["baselines"])
    assert ({*LEARNED, "random"} <= found, "vendor_only" in found) == (True, False)


def test_table_and_warning(diode: RunCommand, trained: Path) -> None:
    """The table names the model; that it has seen the problems is said."""
    result = diode("evaluate", "--model", "quick", "--hardware", "h200", "--top-n-worst", "2")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    names = [line.split("  ")[0] for line in lines]
    assert names[:5] == ["ranking", "quick", "vendor only", "k-config cover", "nearest problem"]
    assert (names.count("quick"), "predicted times" in names) == (2, True)
    assert names.index("problem") == len(lines) - 3
    assert (
        "it was trained on 24 of these 24 problems, so the figures flatter it; give --dataset with other measurements"
        in result.err
    )


def test_parts(diode: RunCommand, trained: Path) -> None:
    """Parts have a table each, with their share of the loss; an unknown slice is refused before anything is read."""
    result = diode("evaluate", "--model", "quick", "--hardware", "h200", "--by", "alignment", "--by", "op")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    (place,) = [i for i, line in enumerate(lines) if line.startswith("op ")]
    assert lines[place].split() == ["op", *" ".join(PARTS_HEADER).split()]
    assert lines[place + 1].split()[:2] == ["mm", "24"]
    assert lines[place + 1].split()[-1] == "100%"
    assert [line.split()[0] for line in lines].count("alignment") == 1
    refused = diode("evaluate", "--model", "quick", "--hardware", "h200", "--by", "colour")
    assert (refused.code, refused.out) == (1, "")
    assert "cannot cut by 'colour'; choose one of op, dtype, layout, alignment" in refused.err


def test_slices_in_json(diode: RunCommand, trained: Path) -> None:
    """Scripts get the figures of every part of every slice."""
    result = diode("evaluate", "--model", "quick", "--hardware", "h200", "--json")
    found = json.loads(result.out)["slices"]
    assert tuple(found) == SLICES
    assert sum(part["problems"] for part in found["size"].values()) == 24
    assert {"regret", "within_noise", "share_of_oracle", "mse_us"} <= set(found["op"]["mm"])


def test_a_family_that_no_measurement_names(diode: RunCommand, trained: Path) -> None:
    """Measurements without families cannot be judged by family."""
    result = diode("evaluate", "--model", "quick", "--hardware", "h200", "--family", "llama3-8b")
    assert result.code == 1
    said = "error: --family: no problem of the family 'llama3-8b'; these measurements do not name families\n"
    assert result.err.endswith(said)


def test_dataset_file(diode: RunCommand, trained: Path, jsonl_path: Path) -> None:
    """Measurements that are in no warehouse judge a model too; impossible templates are never chosen."""
    result = diode(
        "evaluate", "--model", str(trained), "--dataset", str(jsonl_path), "--hardware", "h200", "--op", "mm", "--json"
    )
    assert result.code == 0, result.err
    shown = json.loads(result.out)
    assert (shown["seen_in_training"], shown["outside_domain"]) == (0, 4)
    assert shown["problems"] >= 3
    assert shown["regret"]["1"]["geomean"] >= 1.0


def test_dataset_file_of_several_devices(diode: RunCommand, trained: Path, jsonl_path: Path) -> None:
    """A file's lines are filtered by device; devices that differ need --all-matches."""
    lines = [json.loads(line) for line in jsonl_path.read_text().splitlines()]
    for line, name in zip(lines, ["NVIDIA H200"] * 2 + ["NVIDIA H100 PCIe"] * 4, strict=True):
        line["hardware"] = name
    jsonl_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ("evaluate", "--model", str(trained), "--dataset", str(jsonl_path), "--json")
    assert json.loads(diode(*command, "--hardware", "h200").out)["problems"] == 2
    assert json.loads(diode(*command, "--all-matches").out)["problems"] == 6
    mixed = diode(*command)
    assert (mixed.code, "has different devices: NVIDIA H100 PCIe" in mixed.err) == (1, True)


def test_modes_of_the_hook(diode: RunCommand, trained: Path) -> None:
    """Each mode says how many kernels it benchmarks and what it loses then; zero mode benchmarks none."""
    found = {
        mode: json.loads(diode("evaluate", "--model", "quick", "--hardware", "h200", "--mode", mode, "--json").out)
        for mode in ("zero", "top_k", "adaptive")
    }
    assert found["zero"]["benchmarks"] == 0
    assert found["top_k"]["benchmarks"] > 1
    assert 1.0 <= found["top_k"]["regret"]["geomean"] <= found["zero"]["regret"]["geomean"]
    assert sum(part["problems"] for part in found["zero"]["kinds"].values()) == found["zero"]["problems"]
    table = diode("evaluate", "--model", "quick", "--hardware", "h200", "--mode", "zero").out
    assert table.splitlines()[0].split()[:2] == ["problems", "of"]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mode", "best"), "mode must be one of top_k, zero, adaptive, not 'best'"),
        (("--kernel-price", "0.01"), "--kernel-price and --top-k need --mode"),
        (("--mode", "zero", "--kernel-price", "0.01"), "--kernel-price goes with --mode adaptive"),
        (("--mode", "zero", "--top-k", "2"), "--top-k goes with --mode top_k"),
        (("--mode", "zero", "--no-vendor"), "--no-vendor, --by and --top-n-worst judge rankings"),
        (("--mode", "zero", "--report", "page.html"), "a report shows rankings"),
    ],
)
def test_options_that_do_not_go_with_a_mode(
    diode: RunCommand, trained: Path, options: tuple[str, ...], message: str
) -> None:
    """One line says what to leave out."""
    result = diode("evaluate", "--model", "quick", "--hardware", "h200", *options)
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert message in result.err


def test_worst_in_json(diode: RunCommand, trained: Path) -> None:
    """Scripts get the worst choices with their shapes."""
    result = diode("evaluate", "--model", "quick", "--hardware", "h200", "--top-n-worst", "1", "--json")
    (worst,) = json.loads(result.out)["worst"]
    assert worst["shape"]["op"] == "mm"
    assert worst["regret"] >= 1.0


def test_unseen_leaves_nothing(diode: RunCommand, trained: Path) -> None:
    """A model that has seen everything cannot be judged without it."""
    result = diode("evaluate", "--model", "quick", "--hardware", "h200", "--unseen")
    assert result.code == 1
    assert result.err.endswith(
        "error: the model was trained on all of these problems, so --unseen leaves none; drop it (the figures"
        " then flatter the model) or give --dataset with other measurements\n"
    )


def test_unknown_model(diode: RunCommand, trained: Path) -> None:
    """A name that is none gets the list of names."""
    result = diode("evaluate", "--model", "none", "--hardware", "h200")
    assert result.code == 1
    assert result.err == "error: --model: no model 'none', neither a file nor a known name; known models: quick\n"


def test_corrupt_model(diode: RunCommand, filled: str, tmp_path: Path) -> None:
    """A damaged checkpoint is one line and exit status 1."""
    (tmp_path / "bad.pt").write_bytes(b"PK nonsense")
    result = diode("evaluate", "--model", str(tmp_path / "bad.pt"), "--hardware", "h200")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert "bad.pt: not a whole checkpoint" in result.err


def test_bad_usage(diode: RunCommand) -> None:
    """Without anything to judge by, or without a model, the command exits with 2."""
    assert diode("evaluate", "--model", "quick").code == 2
    assert diode("evaluate", "--hardware", "h200").code == 2
