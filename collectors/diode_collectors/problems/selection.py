"""Selection of problems from a user's request, and one machine's share of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path  # noqa: TC003 - evaluated when the dataclass is inspected
from typing import TYPE_CHECKING

from diode_collectors.problems.drawing import Limits, Sizes, UniformSizes, draw_problems
from diode_collectors.problems.families import family_problems
from diode_collectors.problems.problem import LAYOUTS, SweepProblem, parse_dtype, parse_problem
from diode_collectors.problems.shapesets import read_shapeset
from diode_store.command_line.render import counted
from diode_store.errors import SettingsError
from diode_store.ops import OPS, swept_ops

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

DRAWN_OPS = ("mm", "addmm", "bmm")
_SHARD = re.compile(r"(\d+)/(\d+)")
_SHARD_MEANING = "write i/n with i from 0 to n-1, such as 0/4"
_KEY_BYTES = 8


@dataclass(frozen=True)
class ProblemRequest:
    """A request for problems from all sources together, in the order of the fields."""

    shapes: tuple[str, ...] = ()
    """Problems in the form of ``parse_problem``."""
    shapesets: tuple[Path, ...] = ()
    families: tuple[str, ...] = ()
    num_shapes: int = 0
    """Number of problems to draw."""
    sizes: Sizes = field(default_factory=UniformSizes)
    seed: int = 0
    ops: tuple[str, ...] = ()
    """Ops to draw, and to keep of families and shape sets; empty for all (mm, addmm and bmm in a draw)."""
    dtypes: tuple[str, ...] = ()
    """Dtypes in the form of ``parse_dtype``; empty for ``default_dtype``, or for those of a shape set."""
    layouts: tuple[str, ...] = ()
    """Layouts of typed and drawn problems, and those to keep of families and shape sets."""
    default_dtype: str = "bf16"
    limits: Limits = field(default_factory=Limits)
    """Upper limits of a drawn problem."""


def select_problems(request: ProblemRequest, *, excluded: Collection[bytes] = frozenset()) -> list[SweepProblem]:
    """Return the different problems of a request, always in the same order.

    A bmm with a batch of one becomes an mm, as in Inductor.

    Args:
        request: Request for problems.
        excluded: Keys of problems to leave out. The draw replaces them.

    Raises:
        SettingsError: the request cannot be understood, or it leaves no problem.
    """
    _check(request)
    dtypes = tuple(dict.fromkeys(parse_dtype(name) for name in request.dtypes))
    default = dtypes or (parse_dtype(request.default_dtype),)
    listed = [*_typed(request, default), *_listed(request, dtypes, default)]
    taken = set(excluded)

    def is_new(problem: SweepProblem) -> bool:
        """Add a problem unless its record was added: with sizes of 1, two layouts can be the same."""
        key = problem.problem().key
        if key in taken:
            return False
        taken.add(key)
        return True

    given = [problem for problem in map(as_lowered, listed) if is_new(problem)]
    drawn = draw_problems(
        request.num_shapes,
        request.seed,
        request.sizes,
        ops=request.ops or DRAWN_OPS,
        dtypes=default,
        layouts=request.layouts or ("nn",),
        limits=request.limits,
        wanted=is_new,
    )
    if not given and not drawn:
        raise SettingsError(_why_none(request, listed))
    return [*given, *drawn]


def shard(problems: Iterable[SweepProblem], index: int, count: int) -> list[SweepProblem]:
    """Return the share of one of ``count`` machines.

    The share depends on the problem alone, so machines agree whatever their other options.
    """
    return [problem for problem in problems if int.from_bytes(problem.problem().key[:_KEY_BYTES]) % count == index]


def parse_shard(text: str) -> tuple[int, int]:
    """Return ``i`` and ``n`` of ``i/n``.

    Raises:
        SettingsError: the text has another form.
    """
    match = _SHARD.fullmatch(text.strip())
    if match is None:
        raise SettingsError(f"{text!r} is not a shard; {_SHARD_MEANING}")
    index, count = int(match.group(1)), int(match.group(2))
    if index >= count:
        raise SettingsError(f"there is no shard {index} of {count}; {_SHARD_MEANING}")
    return index, count


def shard_of_environment(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the index and the number of processes from the variables of ``torchrun`` or of a Slurm array.

    Raises:
        SettingsError: the variables contradict each other.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        index, count, names = _number(environment, "RANK"), _number(environment, "WORLD_SIZE"), "RANK of WORLD_SIZE"
    elif "SLURM_ARRAY_TASK_ID" in environment and "SLURM_ARRAY_TASK_COUNT" in environment:
        first = _number(environment, "SLURM_ARRAY_TASK_MIN", 0)
        step = max(_number(environment, "SLURM_ARRAY_TASK_STEP", 1), 1)
        index = (_number(environment, "SLURM_ARRAY_TASK_ID") - first) // step
        count, names = _number(environment, "SLURM_ARRAY_TASK_COUNT"), "SLURM_ARRAY_TASK_ID of SLURM_ARRAY_TASK_COUNT"
    else:
        return 0, 1
    if not 0 <= index < count:
        raise SettingsError(f"{names} makes shard {index} of {count}, which does not exist; give --shard i/n")
    return index, count


def _check(request: ProblemRequest) -> None:
    for what, given, known in (("op", request.ops, swept_ops()), ("layout", request.layouts, LAYOUTS)):
        for value in given:
            if value not in known:
                raise SettingsError(f"unknown {what} {value!r}; known {what}s: {', '.join(known)}")
    for op in request.ops if request.num_shapes else ():
        if not OPS[op].is_plain:
            raise SettingsError(f"--num-shapes draws no {op}; name problems with --shape, --shapeset or --family")
    if request.num_shapes < 0:
        raise SettingsError(f"--num-shapes {request.num_shapes} is negative")
    if not (request.shapes or request.shapesets or request.families or request.num_shapes):
        raise SettingsError("give problems with --shape, --shapeset, --family or --num-shapes")


def _typed(request: ProblemRequest, dtypes: Sequence[tuple[str, bool]]) -> list[SweepProblem]:
    return [
        parse_problem(text, dtype=dtype, layout=layout, allow_tf32=tf32, name="typed")
        for text in request.shapes
        for dtype, tf32 in dtypes
        for layout in request.layouts or ("nn",)
    ]


def _listed(
    request: ProblemRequest, dtypes: Sequence[tuple[str, bool]], default: Sequence[tuple[str, bool]]
) -> list[SweepProblem]:
    found: list[SweepProblem] = []
    for path in request.shapesets:
        found += read_shapeset(path, dtypes)
    for name in request.families:
        found += family_problems(name, default)
    return [
        problem
        for problem in found
        if (not request.ops or problem.op in request.ops) and (not request.layouts or problem.layout in request.layouts)
    ]


def as_lowered(problem: SweepProblem) -> SweepProblem:
    """Return a problem as Inductor lowers it: a bmm with a batch of one becomes an mm."""
    plain = problem.entry.plain
    return replace(problem, op=plain) if plain and problem.b == 1 else problem


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    try:
        return int(text)
    except ValueError:
        raise SettingsError(f"{name} is {text!r}, which is not a whole number; give --shard i/n") from None


def _why_none(request: ProblemRequest, listed: Sequence[SweepProblem]) -> str:
    if listed:
        given = counted(len(listed), "problem")
        return f"nothing is left of {given}: the set to be disjoint from has all of it; add --num-shapes"
    asked = [*(f"--op {op}" for op in request.ops), *(f"--layout {layout}" for layout in request.layouts)]
    return f"no problem of the families and shape sets is left by {' '.join(asked)}; drop or widen these options"
