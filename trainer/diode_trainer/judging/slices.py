"""Split an evaluation by op, dtype, alignment, size, time or family."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING

from diode_store.devices.descriptor import describe
from diode_store.errors import SettingsError
from diode_trainer.judging.judgement import summarise
from diode_trainer.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from diode_trainer.judging.judgement import ProblemJudgement
    from diode_trainer.judging.metrics import Report

_TIMES_US = (10.0, 30.0, 100.0, 1000.0)
_TIME_NAMES = ("under 10 us", "10 to 30 us", "30 to 100 us", "100 us to 1 ms", "1 ms or more")
_SIZES_GFLOP = (0.1, 1.0, 10.0, 100.0)
_SIZE_NAMES = ("under 0.1 GFLOP", "0.1 to 1 GFLOP", "1 to 10 GFLOP", "10 to 100 GFLOP", "100 GFLOP or more")
_NOT_NAMED = "unknown"
_NONE = "none"
_ALIGNMENTS = ("16 bytes", "8 bytes", "4 bytes", "2 bytes", "1 byte")


def _work(judgement: ProblemJudgement) -> Work:
    return Work(judgement.shape, describe(judgement.hardware))


def _alignment(judgement: ProblemJudgement) -> str:
    work = _work(judgement)
    width = min(work.access_a, work.access_b, work.access_c)
    return "1 byte" if width == 1 else f"{width} bytes"


def _size(judgement: ProblemJudgement) -> str:
    return _SIZE_NAMES[bisect_right(_SIZES_GFLOP, _work(judgement).flops / 1e9)]


def _groups(judgement: ProblemJudgement) -> str:
    shape = judgement.shape
    form, skew = shape.dimension("form"), shape.dimension("skew", 0)
    return _NONE if form is None else f"{form}, skew {skew:g}"


_SLICES: dict[str, tuple[Callable[[ProblemJudgement], str], tuple[str, ...]]] = {
    "op": (lambda judgement: judgement.shape.op, ()),
    "dtype": (lambda judgement: judgement.shape.arithmetic, ()),
    "layout": (lambda judgement: judgement.shape.layout, ()),
    "alignment": (_alignment, _ALIGNMENTS),
    "scaling": (lambda judgement: str(judgement.shape.dimension("scaling", _NONE)), ()),
    "groups": (_groups, ()),
    "size": (_size, _SIZE_NAMES),
    "time": (lambda judgement: _TIME_NAMES[bisect_right(_TIMES_US, judgement.best_us)], _TIME_NAMES),
    "winner": (lambda judgement: "vendor" if judgement.best_is_vendor else "Triton", ()),
    "family": (lambda judgement: judgement.family or _NOT_NAMED, ()),
    "regime": (lambda judgement: judgement.regime or _NOT_NAMED, ()),
    "device": (lambda judgement: judgement.hardware.name, ()),
}
"""Function that returns the part of a problem, and the order of the parts if it is not alphabetical, by name."""

SLICES = tuple(_SLICES)
"""Names of the ways to split an evaluation.

``scaling`` is the recipe of scales, and ``groups`` the form and the skew of a grouped product. ``alignment`` is the
widest access, at most 16 bytes, that keeps the rows of A, B and the result aligned. ``size`` is the amount of
arithmetic, ``time`` the best measured time, and ``winner`` the side with the best kernel.
"""


def check_slices(by: Iterable[str]) -> None:
    """Check that each of ``by`` is one of ``SLICES``.

    Raises:
        SettingsError: a name is unknown; the message lists the known ones.
    """
    for name in by:
        if name not in _SLICES:
            raise SettingsError(f"cannot cut by {name!r}; choose one of {', '.join(SLICES)}")


def parts(judgements: Iterable[ProblemJudgement], by: str) -> dict[str, list[ProblemJudgement]]:
    """Return the problems of each part, in the order of tables and pictures.

    Raises:
        SettingsError: ``by`` is not one of ``SLICES``; the message lists them.
    """
    check_slices([by])
    part_of, order = _SLICES[by]
    found: dict[str, list[ProblemJudgement]] = defaultdict(list)
    for judgement in judgements:
        found[part_of(judgement)].append(judgement)
    return {name: found[name] for name in sorted(found, key=lambda name: (name in order and order.index(name), name))}


def slices(judgements: Sequence[ProblemJudgement], by: Iterable[str] = SLICES) -> Mapping[str, Mapping[str, Report]]:
    """Return the figures of each part, such as ``slices(judgements)["alignment"]["16 bytes"].regret[1].geomean``.

    Raises:
        SettingsError: a name is unknown; the message lists the known ones.
    """
    return {name: {part: summarise(some) for part, some in parts(judgements, name).items()} for name in by}
