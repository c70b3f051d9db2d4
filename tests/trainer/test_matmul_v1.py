"""Upstream's first model: loaded, asked as upstream asks it, and refused where it is damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from synthetic import H200, MM, VENDOR_ROW, columns
from upstream_v1 import checkpoint, state_dict

from diode_store.candidates.columns import ConfigColumns
from diode_store.errors import ModelError
from diode_store.records import ProblemShape
from diode_trainer import artifact, matmul_v1
from diode_trainer.card import card_path
from diode_trainer.judging.verify import verify
from diode_trainer.matmul_v1 import MatmulModelV1, config_features, problem_features

if TYPE_CHECKING:
    from conftest import RunCommand
    from diode_trainer.artifact import TimingModel

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "upstream_v1.json").read_text())
CONFIGS = ConfigColumns.from_rows([("triton::mm", m, n, k, 8, s, w, False) for m, n, k, s, w in GOLDEN["configs"]])
PROBLEMS = pytest.mark.parametrize("problem", GOLDEN["problems"], ids=lambda p: f"{p['M']}x{p['N']}x{p['K']}")


def shape_of(problem: dict[str, Any]) -> ProblemShape:
    """Return a golden problem's shape."""
    return ProblemShape("mm", problem["dtype"], 1, problem["M"], problem["N"], problem["K"], "nn")


def saved(path: Path, content: object) -> Path:
    """Write what ``torch.save`` writes."""
    torch.save(content, path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a checkpoint such as upstream's."""
    return saved(tmp_path / "v1_model.pt", checkpoint())


@pytest.fixture
def model(path: Path) -> TimingModel:
    """Return it, loaded."""
    return artifact.load(path)


# --- as upstream asks it


@PROBLEMS
def test_features_are_upstreams(problem: dict[str, Any]) -> None:
    """Order and normalisation are those of upstream's own code, whose values are kept."""
    shape = shape_of(problem)
    own = np.concatenate((np.tile(problem_features(shape), (len(CONFIGS), 1)), config_features(CONFIGS)), axis=1)
    np.testing.assert_allclose(own, problem["features"], rtol=0, atol=2e-6)


@PROBLEMS
def test_predictions_are_upstreams(model: TimingModel, problem: dict[str, Any]) -> None:
    """The same weights predict the same times as in upstream's own code."""
    predicted = model.predict_us(shape_of(problem), H200, CONFIGS)
    np.testing.assert_allclose(np.log(predicted / 1000), problem["log_ms"], rtol=0, atol=1e-5)


@PROBLEMS
def test_network_and_scorer_agree(model: TimingModel, problem: dict[str, Any]) -> None:
    """The network in PyTorch, with its batch norms, predicts what the scorer with folded ones does."""
    rows = torch.tensor(problem["features"], dtype=torch.float32)
    expected = np.exp(model.network(rows[:, :7], rows[:, 7:]).numpy()[:, 0]) * 1000
    np.testing.assert_allclose(model.predict_us(shape_of(problem), H200, CONFIGS), expected, rtol=1e-4)


def test_a_launch_is_the_least_it_predicts(tmp_path: Path) -> None:
    """However small the network's own prediction is, the overhead of the checkpoint remains."""
    state = state_dict()
    state["linear_relu_stack.6.bias"] -= 100
    loaded = artifact.load(saved(tmp_path / "m.pt", checkpoint(model_state_dict=state)))
    np.testing.assert_allclose(loaded.predict_us(MM, H200, CONFIGS), 4.0)


# --- what it can rank


def test_only_tritons_mm_template_is_ranked(model: TimingModel) -> None:
    """A vendor's kernel, one with TMA and one without numbers are never chosen."""
    rows = [VENDOR_ROW, *(("triton::mm", 64, 64, 32, 8, 3, 4, False),) * 2]
    rows += [("triton::mm_persistent_tma", 64, 64, 32, 8, 3, 4, False), ("triton::mm", 0, 64, 32, 8, 3, 4, False)]
    finite = np.isfinite(model.predict_us(MM, H200, ConfigColumns.from_rows(rows)))
    assert finite.tolist() == [False, True, True, False, False]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"dtype": "float16"}, True),
        ({"dtype": "float32", "tf32": True}, True),
        ({"op": "addmm"}, False),
        ({"op": "bmm"}, False),
        ({"dtype": "float8_e4m3fn"}, False),
    ],
)
def test_problems_it_was_made_for(model: TimingModel, changes: dict[str, Any], *, expected: bool) -> None:
    """It ranks mm in the dtypes that upstream encodes, and nothing of any other problem."""
    shape = replace(MM, **changes)
    assert model.can_rank(shape) is expected
    assert np.isfinite(model.predict_us(shape, H200, columns())).any() == expected


# --- its file


def test_real_layout(tmp_path: Path) -> None:
    """Six layers of 256, as in the file that upstream ships."""
    widths = (256,) * 6
    content = checkpoint(model_state_dict=state_dict(widths), hidden_layer_widths=list(widths), kernel_overhead=0.00541)
    loaded = artifact.load(saved(tmp_path / "v1_model.pt", content))
    assert isinstance(loaded.network, MatmulModelV1)
    assert (loaded.network.hidden_layer_widths, loaded.network.kernel_overhead) == (widths, 0.00541)
    assert np.isfinite(loaded.predict_us(MM, H200, CONFIGS)).all()


def test_raw_state_dict(tmp_path: Path) -> None:
    """A bare state dict of upstream's names is the same model; its widths follow, its overhead is the default."""
    loaded = artifact.load(saved(tmp_path / "raw.pt", state_dict()))
    assert isinstance(loaded.network, MatmulModelV1)
    assert (loaded.network.hidden_layer_widths, loaded.network.kernel_overhead) == ((8, 6), 0.00541)
    assert (loaded.card.name, loaded.card.model_type, loaded.trained_on) == ("raw", "v1", frozenset())


def test_domain_of_a_model_without_a_card(model: TimingModel) -> None:
    """What it covers is known without a card, so that the hook would abstain elsewhere."""
    domain = model.card.domain
    assert (domain.ops, domain.templates) == (("mm",), ("triton::mm",))
    assert domain.dtypes == ("bfloat16", "float16", "float32", "tf32")
    assert [miss.reason for miss in domain.misses(replace(MM, op="bmm"), H200)] == ["op"]


STATE = state_dict()
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a tensor is missing": (
        checkpoint(model_state_dict={n: v for n, v in STATE.items() if n != "linear_relu_stack.4.running_var"}),
        "do not make a MatmulModelV1",
    ),
    "a tensor has another shape": (
        checkpoint(model_state_dict={**STATE, "linear_relu_stack.3.bias": torch.zeros(7)}),
        "do not make a MatmulModelV1",
    ),
    "only the first tensor": (
        checkpoint(model_state_dict={"linear_relu_stack.0.weight": torch.zeros(8, 12)}),
        "do not make a MatmulModelV1",
    ),
    "17 features": (
        checkpoint(model_state_dict={**STATE, "linear_relu_stack.0.weight": torch.zeros(8, 17)}),
        "expected 12 features (7 of the problem, 5 of the config), got 17",
    ),
    "no tensor": (
        checkpoint(model_state_dict={**STATE, "linear_relu_stack.0.weight": "zeros"}),
        "do not make a MatmulModelV1",
    ),
    "another name": (
        checkpoint(model_state_dict={**STATE, "linear_relu_stack.last.weight": torch.zeros(1)}),
        "do not make a MatmulModelV1",
    ),
    "not finite": (
        checkpoint(model_state_dict={**STATE, "linear_relu_stack.3.bias": torch.full((6,), torch.nan)}),
        "weights are not all finite numbers",
    ),
    "no overhead": (checkpoint(kernel_overhead=0.0), "kernel_overhead must be positive milliseconds, not 0.0"),
    "an overhead of text": (checkpoint(kernel_overhead="short"), "do not make a MatmulModelV1"),
    "upstream's deep model": (
        {"model_state_dict": {"input_layer.0.weight": torch.zeros(8, 36)}, "hidden_dim": 8, "num_layers": 2},
        "the checkpoint has a missing or invalid field",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_foreign_checkpoint(tmp_path: Path, case: str) -> None:
    """What is not such a model is refused in one line that names the file."""
    content, expected = BAD[case]
    path = saved(tmp_path / "bad.pt", content)
    with pytest.raises(ModelError) as caught:
        artifact.load(path)
    message = str(caught.value)
    assert (message.count("\n"), message.startswith(f"{path}: "), len(message) < 600) == (0, True, True)
    assert expected in message


def test_truncated_checkpoint(path: Path) -> None:
    """Half a file is refused in one line."""
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ModelError, match=r"v1_model\.pt: not a whole checkpoint; copy it again"):
        artifact.load(path)


def test_a_card_that_claims_more(model: TimingModel, path: Path) -> None:
    """A card beside it may describe it, but not claim that it knows other ops."""
    written = replace(model.card, notes="ours", command="curl")
    card_path(path).write_text(written.to_json())
    assert artifact.load(path).card == written
    card_path(path).write_text(replace(written, domain=replace(written.domain, ops=("bmm", "mm"))).to_json())
    with pytest.raises(ModelError, match=r"its card v1_model\.json is not of upstream's MatmulModelV1; remove it"):
        artifact.load(path)


# --- the commands


def test_show_and_verify(diode: RunCommand, path: Path) -> None:
    """Both work without a card beside the file."""
    shown = json.loads(diode("models", "show", str(path), "--json").out)
    assert (shown["name"], shown["model_type"], shown["domain"]["ops"]) == ("v1_model", "v1", ["mm"])
    assert shown["notes"] == matmul_v1.NOTES
    assert verify(path) is None
    assert diode("models", "verify", str(path)).code == 0


def test_shown_to_a_person(diode: RunCommand, path: Path) -> None:
    """What nobody knows of it is left out, not shown as empty."""
    lines = diode("models", "show", str(path)).out.splitlines()
    names = ["name", "purpose", "type", "ops", "dtypes", "templates", "sha256", "licence", "notes", "path"]
    assert [line.split()[0] for line in lines] == names


def test_list(diode: RunCommand, path: Path, shipped: Path) -> None:
    """It is listed among the others, with its type."""
    path.rename(shipped / path.name)
    (row,) = json.loads(diode("models", "list", "--json").out)
    assert (row["name"], row["type"], row["error"]) == ("v1_model", "v1", None)
