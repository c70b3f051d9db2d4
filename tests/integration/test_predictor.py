"""Whom a model is asked by, about what it is believed, and what is remembered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from diode_integration.decide import ranking as predictor_module
from diode_integration.decide.models import KnownModel, ModelSet
from diode_integration.decide.ranking import Predictor
from diode_store.candidates.columns import ConfigColumns
from diode_store.records import Problem, TensorSpec
from diode_trainer import artifact
from diode_trainer.card import Domain
from stand_ins import H200, TileModel, asked_about, card_of
from stand_ins import abstention as why_not

if TYPE_CHECKING:
    from numpy.typing import NDArray

MM = ("triton::mm", 64, 64, 32, 8, 3, 4, False)
VENDOR = ("aten::mm", 0, 0, 0, 0, 0, 0, False)


def problem(m: int = 128, n: int = 256, k: int = 512, dtype: str = "bfloat16", *, transposed: bool = False) -> Problem:
    """Return an mm of a row-major A by a row-major or transposed B."""
    strides = (1, k) if transposed else (n, 1)
    return Problem.create("mm", (TensorSpec(dtype, (m, k), (k, 1)), TensorSpec(dtype, (k, n), strides)))


def columns(*rows: tuple[Any, ...]) -> ConfigColumns:
    """Return candidates, by default one template and one vendor kernel."""
    return ConfigColumns.from_rows(rows or (MM, VENDOR))


def abstention(reason: str, **asked: Any) -> str:
    """Return why a model is not asked, which is for ``reason``."""
    message = why_not(ModelSet([KnownModel.loaded(TileModel())]), **{"problem": problem(), "hardware": H200, **asked})
    assert message.startswith(f"{reason}: ")
    return message


def test_ranks_what_it_knows() -> None:
    """Inside the domain every candidate gets its predicted time, and vendor kernels are told apart."""
    ranking = Predictor(TileModel(vendor_us=7.0)).rank(problem(), H200, columns())
    assert ranking.predicted_us.tolist() == [20.0, 7.0]
    assert ranking.is_vendor.tolist() == [False, True]
    assert ranking.problem == problem()


def test_abstains_on_unknown_hardware() -> None:
    """A device of another architecture is left to stock Inductor; the reason names both."""
    message = abstention("hardware", hardware=replace(H200, name="NVIDIA L4", arch="sm_89", multiprocessors=58))
    expected = (
        "hardware: the model knows the architecture sm_90 (NVIDIA H200), not NVIDIA L4 (sm_89, 58 multiprocessors)"
    )
    assert message == expected


def test_abstains_on_another_architecture_of_the_same_name() -> None:
    """The same name with another architecture is another device; with other multiprocessors it is a near one."""
    abstention("hardware", hardware=replace(H200, arch="sm_100"))
    ranking = Predictor(TileModel()).rank(problem(), replace(H200, multiprocessors=114), columns())
    assert ranking.near_to == "NVIDIA H200"


def test_abstains_on_unknown_op() -> None:
    """An op that the model was not trained on is left to stock Inductor."""
    asked = Problem.create("int_mm", (TensorSpec("bfloat16", (8, 8), (8, 1)), TensorSpec("bfloat16", (8, 8), (8, 1))))
    assert abstention("op", problem=asked) == "op: the model knows mm, addmm, bmm, not int_mm"


def test_abstains_on_unknown_dtype() -> None:
    """A dtype that the model was not trained on is left to stock Inductor."""
    assert abstention("dtype", problem=problem(dtype="float64")) == (
        "dtype: the model knows float32, bfloat16, not float64"
    )


def test_abstains_on_tf32_unless_trained_on_it() -> None:
    """A model of IEEE float32 is not asked where TF32 is allowed: other kernels win there."""
    exact = problem(dtype="float32")
    asked = Problem.create(exact.op, exact.inputs, {"ALLOW_TF32": True})
    assert abstention("dtype", problem=asked) == "dtype: the model knows float32, bfloat16, not tf32"


def test_abstains_on_unknown_layout() -> None:
    """A layout that the model was not trained on is left to stock Inductor."""
    inputs = (TensorSpec("bfloat16", (64, 64), (1, 64)), TensorSpec("bfloat16", (64, 64), (1, 64)))
    assert abstention("layout", problem=Problem.create("mm", inputs)) == "layout: the model knows nn, nt, tn, not tt"


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"m": 4097}, "shape: M=4097 is outside 1 to 4096, which the model knows"),
        ({"k": 8192}, "shape: K=8192 is outside 1 to 4096, which the model knows"),
    ],
)
def test_abstains_outside_the_trained_shapes(size: dict[str, int], message: str) -> None:
    """A size outside what the training problems covered is left to stock Inductor; the limits are inside."""
    assert abstention("shape", problem=problem(**size)) == message
    asked_about(ModelSet([KnownModel.loaded(TileModel())]), problem(m=4096, n=1, k=4096), H200)


def test_empty_domain_is_open() -> None:
    """A bare state dict has no card and so no domain: it is asked about everything."""
    models = ModelSet([KnownModel.loaded(TileModel(card=card_of(Domain())))])
    asked = asked_about(models, problem(dtype="float64"), replace(H200, name="any"))
    assert asked.knows("triton::anything")


def test_knows_only_trained_templates() -> None:
    """A template that the card does not name cannot be ranked."""
    asked = Predictor(TileModel())
    assert (asked.knows("triton::mm"), asked.knows("decompose_k")) == (True, False)


def test_abstains_when_the_model_answers_another_question() -> None:
    """A model that returns another number of times than it was asked for is not believed."""

    @dataclass
    class Short(TileModel):
        def predict_us(self, *_asked: Any) -> NDArray[np.float64]:
            return np.ones(1)

    ranking = Predictor(Short()).rank(problem(), H200, columns())
    assert abstention("features", defect=ranking.defect) == "features: the model gave (1,) times for 2 candidates"


def test_abstains_when_nothing_can_run() -> None:
    """When no candidate can run on the device, stock Inductor decides."""
    ranking = Predictor(TileModel(template_us=np.inf)).rank(problem(), H200, columns(MM))
    message = abstention("nothing_fits", defect=ranking.defect)
    assert message == "nothing_fits: none of the 1 candidates can run on NVIDIA H200"


def test_a_kernel_is_ranked_once() -> None:
    """Under the name that is predicted fastest; where sizes are arguments of the kernels every name is one."""
    predictor, odd = Predictor(artifact.load_shipped()), problem(k=513, transposed=True)
    stages = columns(*(("triton::mm", 64, 64, 32, 8, stages, 4, False) for stages in (1, 2, 3, 4, 5)), VENDOR)
    once, each = (predictor.rank(odd, H200, stages, distinct=distinct) for distinct in (True, False))
    assert np.isfinite(once.predicted_us).tolist() == [
        us == each.predicted_us[:5].min() for us in each.predicted_us[:5]
    ] + [True]
    assert np.isfinite(each.predicted_us).all()
    assert np.isfinite(predictor.rank(problem(), H200, stages).predicted_us).all()


def test_same_question_is_asked_once() -> None:
    """A problem that comes again with the same candidates is answered from memory, and cannot be overwritten."""
    model = TileModel()
    asked = Predictor(model)
    first = asked.rank(problem(), H200, columns())
    again = asked.rank(problem(), H200, columns())
    assert model.asked == 1
    assert again.predicted_us is first.predicted_us
    with pytest.raises(ValueError, match="read-only"):
        first.predicted_us[0] = 0


@pytest.mark.parametrize(
    "other",
    [
        {"problem": problem(m=129)},
        {"problem": problem(transposed=True)},
        {"columns": columns(MM)},
        {"columns": columns(VENDOR, MM)},
        {"columns": columns((*MM[:-1], True), VENDOR)},
        {"columns": columns((*MM[:6], 8, False), VENDOR)},
    ],
    ids=["size", "layout", "fewer", "order", "tf32", "warps"],
)
def test_another_question_is_asked_anew(other: dict[str, Any]) -> None:
    """Another problem, other candidates or another order of them is another question."""
    model = TileModel()
    asked = Predictor(model)
    question = {"problem": problem(), "hardware": H200, "columns": columns()}
    asked.rank(**question)
    asked.rank(**{**question, **other})
    assert model.asked == 2


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest answers are forgotten first, those asked for again count as new."""
    monkeypatch.setattr(predictor_module, "_CACHED_PROBLEMS", 2)
    model = TileModel()
    asked = Predictor(model)
    for m in (1, 2, 1, 3, 1, 2):
        asked.rank(problem(m=m), H200, columns())
    assert model.asked == 4
