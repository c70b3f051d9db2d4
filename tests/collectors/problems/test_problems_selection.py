"""What a person asks for, as a list of problems, and one machine's share of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from diode_collectors.problems.drawing import UniformSizes
from diode_collectors.problems.families import family_problems
from diode_collectors.problems.problem import SweepProblem
from diode_collectors.problems.selection import (
    ProblemRequest,
    parse_shard,
    select_problems,
    shard,
    shard_of_environment,
)
from diode_store.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def shapeset(tmp_path: Path) -> Path:
    """Return a file of one fp16 problem."""
    path = tmp_path / "set.json"
    entry = {"B": 1, "M": 16, "N": 32, "K": 64, "M_dtype": "float16"}
    path.write_text(json.dumps({"operations": {"mm": {"shapes": [entry]}}}))
    return path


def test_all_sources_come_together_once_each(shapeset: Path) -> None:
    """Typed, from files, of families, drawn; in this order, the same for the same request."""
    request = ProblemRequest(
        shapes=("mm:8x8x8", "mm:8x8x8"), shapesets=(shapeset,), families=("vit-b16", "vit-b16"), num_shapes=3, seed=1
    )
    problems = select_problems(request)
    family = family_problems("vit-b16")
    assert problems[0] == SweepProblem("mm", 8, 8, 8)
    assert problems[1] == SweepProblem("mm", 16, 32, 64, dtype="float16")
    assert problems[2 : 2 + len(family)] == family
    assert [problem.name for problem in problems[2 + len(family) :]] == ["drawn/1"] * 3
    assert problems == select_problems(request)


def test_dtypes_and_layouts_multiply_what_is_typed() -> None:
    """Each shape in each; a shape that names its own has only that."""
    request = ProblemRequest(shapes=("mm:8x8x8", "mm:16x16x16/nt/fp16"), dtypes=("bf16", "tf32"), layouts=("nn", "tn"))
    assert [str(problem) for problem in select_problems(request)] == [
        "mm:8x8x8/nn/bf16",
        "mm:8x8x8/tn/bf16",
        "mm:8x8x8/nn/tf32",
        "mm:8x8x8/tn/tf32",
        "mm:16x16x16/nt/fp16",
    ]


def test_shape_sets_keep_their_dtype_unless_one_is_asked_for(shapeset: Path) -> None:
    """The default dtype is for what has none."""
    assert {p.dtype for p in select_problems(ProblemRequest(shapesets=(shapeset,)))} == {"float16"}
    asked = ProblemRequest(shapesets=(shapeset,), dtypes=("bf16",))
    assert {p.dtype for p in select_problems(asked)} == {"bfloat16"}


def test_ops_and_layouts_are_taken_of_families() -> None:
    """Only these are left."""
    problems = select_problems(ProblemRequest(families=("gpt2-xl",), ops=("addmm",), layouts=("nn",)))
    assert {(p.op, p.layout) for p in problems} == {("addmm", "nn")}
    assert len(problems) == 80


def test_a_batch_of_one_is_an_mm() -> None:
    """That is what Inductor makes of it, and measures."""
    assert select_problems(ProblemRequest(shapes=("bmm:8x8x8:1", "mm:8x8x8"))) == [SweepProblem("mm", 8, 8, 8)]


def test_layouts_that_are_the_same_are_one_problem() -> None:
    """Of a size of 1 there is no telling them apart, so measuring both would be measuring one twice."""
    typed = ProblemRequest(shapes=("mm:1x1x1", "mm:1x1x1/tt", "mm:1x8x1/tn", "mm:1x8x1"))
    assert [str(problem) for problem in select_problems(typed)] == ["mm:1x1x1/nn/bf16", "mm:1x8x1/tn/bf16"]
    sizes = UniformSizes(min_size=1, max_size=2)
    drawn = select_problems(ProblemRequest(num_shapes=20, sizes=sizes, ops=("mm",), layouts=("nn", "nt", "tn", "tt")))
    assert len({problem.problem().key for problem in drawn}) == len(drawn) == 20


def test_what_is_excluded_is_drawn_around() -> None:
    """A validation set has as many problems as asked for and none of the training set's."""
    request = ProblemRequest(num_shapes=20, seed=1, sizes=UniformSizes(power_of_two=True))
    training = select_problems(request)
    keys = {problem.problem().key for problem in training}
    validation = select_problems(request, excluded=keys)
    assert len(validation) == 20
    assert {problem.problem().key for problem in validation} & keys == set()
    typed = ProblemRequest(shapes=(str(training[0]), str(validation[0])))
    assert select_problems(typed, excluded=keys) == validation[:1]


def test_nothing_left_beside_what_is_excluded_is_refused() -> None:
    """The message says why, and what to do."""
    problem = SweepProblem("mm", 8, 8, 8)
    with pytest.raises(
        SettingsError, match="nothing is left of 1 problem: the set to be disjoint from has all of it; add"
    ):
        select_problems(ProblemRequest(shapes=("mm:8x8x8",)), excluded={problem.problem().key})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give problems with --shape, --shapeset, --family or --num-shapes"),
        ({"num_shapes": -1}, "--num-shapes -1 is negative"),
        ({"num_shapes": 1, "ops": ("conv",)}, "unknown op 'conv'; known ops: mm, addmm, bmm, baddbmm"),
        ({"num_shapes": 1, "layouts": ("xx",)}, "unknown layout 'xx'; known layouts: nn, nt, tn, tt"),
        ({"num_shapes": 1, "dtypes": ("int8",)}, "unknown dtype 'int8'"),
        ({"families": ("llama3-8b",), "ops": ("bmm",)}, "no problem of the families and shape sets is left by --op bm"),
    ],
)
def test_requests_without_a_meaning_are_refused(arguments: dict[str, Any], message: str) -> None:
    """What was asked for wrong is named."""
    with pytest.raises(SettingsError, match=message):
        select_problems(ProblemRequest(**arguments))


def test_shards_split_the_problems_whatever_their_order() -> None:
    """Each problem is on one machine, the same one if others are asked for or in another order; all get a share."""
    problems = select_problems(ProblemRequest(num_shapes=400))
    shards = [shard(problems, index, 4) for index in range(4)]
    assert sorted(str(p) for part in shards for p in part) == sorted(map(str, problems))
    assert min(map(len, shards)) > 70
    shuffled = sorted(problems, key=str)[:300]
    assert {str(p) for p in shard(shuffled, 2, 4)} == {str(p) for p in shards[2]} & set(map(str, shuffled))
    assert shard(problems, 0, 1) == problems


def test_shards_are_typed_as_i_of_n() -> None:
    """From 0 to n-1."""
    assert (parse_shard("0/4"), parse_shard("3/4")) == ((0, 4), (3, 4))
    for text, message in (
        ("4/4", "there is no shard 4 of 4; write i/n with i from 0 to n-1"),
        ("0/0", "there is no shard 0 of 0"),
        ("one", "'one' is not a shard; write i/n"),
        ("-1/4", "'-1/4' is not a shard"),
    ):
        with pytest.raises(SettingsError, match=message):
            parse_shard(text)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "2"}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "5"}, (3, 5)),
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "5", "SLURM_ARRAY_TASK_MIN": "1"}, (2, 5)),
        (
            {
                "SLURM_ARRAY_TASK_ID": "20",
                "SLURM_ARRAY_TASK_COUNT": "3",
                "SLURM_ARRAY_TASK_MIN": "10",
                "SLURM_ARRAY_TASK_STEP": "5",
            },
            (2, 3),
        ),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "5"}, (1, 2)),
    ],
)
def test_the_environment_says_which_shard(environment: dict[str, str], expected: tuple[int, int]) -> None:
    """``torchrun`` first, then a Slurm array, wherever its numbers begin; else all of it."""
    assert shard_of_environment(environment) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK of WORLD_SIZE makes shard 4 of 4, which does not exist; give --shard"),
        ({"RANK": "x", "WORLD_SIZE": "4"}, "RANK is 'x', which is not a whole number"),
        ({"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "3"}, "makes shard 7 of 3"),
    ],
)
def test_contradictory_environments_are_refused(environment: dict[str, str], message: str) -> None:
    """A machine that measured the wrong share would be noticed late."""
    with pytest.raises(SettingsError, match=message):
        shard_of_environment(environment)
