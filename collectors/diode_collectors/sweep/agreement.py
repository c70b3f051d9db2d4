"""Agreement of two independent sweeps of the same problems.

A config's time in a sweep is the median of its measurements there. Failures, estimates, replays, and flagged or
superseded measurements are left out, as in the views. Only configs that both sweeps tried are compared, which judges
the timing and not the choice of configs.

The winner, its scatter and the tie set are those of the view ``fastest_configs``, within one regime. Of the regimes in
which both sweeps timed a problem, the nearest to deployment counts. Without a common regime two different ones are
compared, and the report says so.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from dataclasses import astuple, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from diode_store.command_line.render import counted
from diode_store.errors import DatasetError
from diode_store.records import Outcome, regime_rank
from diode_store.timing.noise import BANDS_US, band_of, slowest_tie_us, usual_sigma

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from diode_store.records import Measurement, ProblemShape, TimingMethod

_Case = tuple[bytes, bytes, bytes]
"""Keys of hardware, environment and problem."""
_P95 = 0.95


@dataclass(frozen=True)
class ProblemAgreement:
    """One problem in both sweeps."""

    hardware: str
    problem: ProblemShape
    configs: int
    """Number of configs that both sweeps tried."""
    first_us: float
    """Best time in the first sweep."""
    second_us: float
    first_winner: str
    second_winner: str
    first_ties: int
    """Number of configs within noise of the first sweep's winner, itself included."""
    second_ties: int
    first_in_second: bool
    """True if the first sweep's winner is in the second's tie set."""
    second_in_first: bool
    same_winner: bool
    ratio: float
    """Best time of the second sweep over the best time of the first."""


@dataclass(frozen=True)
class BestSpread:
    """Spread of the best times of the problems, as ``|log(second / first)|``."""

    median_ratio: float
    """Median of second over first, which shows a bias of one sweep."""
    median: float
    p95: float
    maximum: float


@dataclass(frozen=True)
class BandSpread:
    """Spread of all common (problem, config) pairs in one band of runtimes."""

    band: str
    pairs: int
    median_ratio: float | None
    log_ratio_std: float | None
    """None for fewer than two pairs."""


@dataclass(frozen=True)
class OtherRegimes:
    """Problems that each sweep timed in regimes of its own; None is an unknown one."""

    first: str | None
    second: str | None
    problems: int


@dataclass(frozen=True)
class LeftOut:
    """Measurements of both sweeps that were not compared."""

    estimates: int = 0
    failures: int = 0
    flagged: int = 0
    """Measurements with flags."""
    replays: int = 0
    superseded: int = 0
    problems_in_one: int = 0
    """Problems in only one of the sweeps."""
    configs_in_one: int = 0
    """(problem, config) pairs of common problems that only one sweep tried."""
    without_times: int = 0
    """Common problems where no config has a time in both."""


@dataclass(frozen=True)
class Agreement:
    """Comparison of two sweeps; ``problems`` begins with the largest difference."""

    problems: tuple[ProblemAgreement, ...]
    best: BestSpread
    first_in_second_share: float
    """Share of problems with the first sweep's winner in the second's tie set."""
    second_in_first_share: float
    same_winner_share: float
    bands: tuple[BandSpread, ...]
    left_out: LeftOut
    other_regimes: tuple[OtherRegimes, ...] = ()
    """Differences in how the sweeps timed, which show in ``ratio`` and in the spreads."""


@dataclass
class _Timed:
    """One problem in one regime."""

    times_us: dict[bytes, list[float]] = field(default_factory=dict)
    """Times by config; an empty list if the config only failed or was given up."""
    methods: set[TimingMethod] = field(default_factory=set)


@dataclass
class _Sweep:
    """Measurements of one sweep."""

    timed: dict[_Case, dict[str | None, _Timed]] = field(default_factory=lambda: defaultdict(dict))
    """Problems in their regimes."""
    about: dict[_Case, tuple[str, ProblemShape]] = field(default_factory=dict)
    names: dict[bytes, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Ranking:
    """Configs of one problem in one sweep that both sweeps tried."""

    times_us: Mapping[bytes, float]
    """Config → its median."""
    winner: bytes
    best_us: float
    ties: frozenset[bytes]


def agreement_of(first: Iterable[Measurement], second: Iterable[Measurement]) -> Agreement:
    """Compare two sweeps.

    Raises:
        DatasetError: no problem has a time in both sweeps.
    """
    one, other = _gather(first), _gather(second)
    left_out = one.left_out + other.left_out
    left_out["problems_in_one"] = len(one.timed.keys() ^ other.timed.keys())
    problems: list[ProblemAgreement] = []
    pairs: list[tuple[float, float]] = []
    differing: Counter[tuple[str | None, str | None]] = Counter()
    for case in sorted(one.timed.keys() & other.timed.keys()):
        regimes = _regimes(one.timed[case].keys(), other.timed[case].keys())
        a, b = one.timed[case][regimes[0]], other.timed[case][regimes[1]]
        both = a.times_us.keys() & b.times_us.keys()
        left_out["configs_in_one"] += len(a.times_us.keys() ^ b.times_us.keys())
        ranks = _ranking(a, both), _ranking(b, both)
        if ranks[0] is None or ranks[1] is None:
            left_out["without_times"] += 1
            continue
        differing[regimes] += regimes[0] != regimes[1]
        problems.append(_compared(*one.about[case], len(both), ranks[0], ranks[1], one.names))
        times = ranks[0].times_us, ranks[1].times_us
        pairs += [(times[0][config], times[1][config]) for config in times[0].keys() & times[1].keys()]
    if not problems:
        raise DatasetError(_nothing_common(one, other))
    problems.sort(key=lambda problem: (-abs(math.log(problem.ratio)), problem.hardware, astuple(problem.problem)))
    return Agreement(
        problems=tuple(problems),
        best=_best_spread([problem.ratio for problem in problems]),
        first_in_second_share=statistics.fmean(problem.first_in_second for problem in problems),
        second_in_first_share=statistics.fmean(problem.second_in_first for problem in problems),
        same_winner_share=statistics.fmean(problem.same_winner for problem in problems),
        bands=_band_spreads(pairs),
        left_out=LeftOut(**left_out),
        other_regimes=tuple(OtherRegimes(*regimes, number) for regimes, number in differing.most_common() if number),
    )


def _regimes(first: AbstractSet[str | None], second: AbstractSet[str | None]) -> tuple[str | None, str | None]:
    """Return the regimes to compare: the common one nearest to deployment, else each sweep's own nearest."""

    def nearest(regimes: AbstractSet[str | None]) -> str | None:
        return min(regimes, key=lambda regime: (regime_rank(regime), regime or ""))

    return nearest(first & second or first), nearest(first & second or second)


def _gather(measurements: Iterable[Measurement]) -> _Sweep:
    """Read a sweep, keeping only the times."""
    sweep = _Sweep()
    seen: set[bytes] = set()
    for measurement in measurements:
        if measurement.uid in seen:
            continue
        seen.add(measurement.uid)
        reason = _untrusted(measurement)
        if reason is not None:
            sweep.left_out[reason] += 1
            continue
        hardware, problem = measurement.hardware, measurement.problem
        case = (hardware.key, measurement.environment.key, problem.key)
        sweep.about[case] = (hardware.name, problem.shape)
        found = sweep.timed[case].setdefault(measurement.timing_method.regime, _Timed())
        found.methods.add(measurement.timing_method)
        for timing in measurement.timings:
            key = timing.config.key
            times = found.times_us.setdefault(key, [])
            sweep.names.setdefault(key, timing.config.describe())
            if timing.outcome is not Outcome.OK or timing.runtime_us is None:
                sweep.left_out["failures"] += 1
            elif timing.is_estimate:
                sweep.left_out["estimates"] += 1
            else:
                times.append(timing.runtime_us)
    return sweep


def _untrusted(measurement: Measurement) -> str | None:
    """Return the reason that no view shows a measurement, or None."""
    if measurement.superseded_by is not None:
        return "superseded"
    if measurement.is_replay:
        return "replays"
    return "flagged" if measurement.flags else None


def _ranking(timed: _Timed, both: AbstractSet[bytes]) -> _Ranking | None:
    """Rank the configs in ``both`` by their medians; None if none has a time."""
    runs = {config: times for config, times in timed.times_us.items() if config in both and times}
    if not runs:
        return None
    medians = {config: statistics.median(times) for config, times in runs.items()}
    best_us, winner = min((us, config) for config, us in medians.items())
    measured = _measured_sigma(runs.values())
    limit = slowest_tie_us(best_us, usual_sigma(best_us, timed.methods) if measured is None else measured)
    ties = frozenset(config for config, us in medians.items() if us <= limit)
    return _Ranking(medians, winner, best_us, ties)


def _measured_sigma(runs: Iterable[Sequence[float]]) -> float | None:
    """Return the relative scatter pooled over configs that were measured several times; None if there are none."""
    repeated = [times for times in runs if len(times) > 1]
    if not repeated:
        return None
    freedom = sum(len(times) - 1 for times in repeated)
    variances = ((len(t) - 1) * statistics.variance(t) / statistics.fmean(t) ** 2 for t in repeated)
    return math.sqrt(sum(variances) / freedom)


def _compared(
    hardware: str, problem: ProblemShape, configs: int, first: _Ranking, second: _Ranking, names: Mapping[bytes, str]
) -> ProblemAgreement:
    return ProblemAgreement(
        hardware=hardware,
        problem=problem,
        configs=configs,
        first_us=first.best_us,
        second_us=second.best_us,
        first_winner=names[first.winner],
        second_winner=names[second.winner],
        first_ties=len(first.ties),
        second_ties=len(second.ties),
        first_in_second=first.winner in second.ties,
        second_in_first=second.winner in first.ties,
        same_winner=first.winner == second.winner,
        ratio=second.best_us / first.best_us,
    )


def _best_spread(ratios: Sequence[float]) -> BestSpread:
    sizes = np.abs(np.log(ratios))
    return BestSpread(
        median_ratio=statistics.median(ratios),
        median=float(np.median(sizes)),
        p95=float(np.quantile(sizes, _P95)),
        maximum=float(sizes.max()),
    )


def _band_spreads(pairs: Iterable[tuple[float, float]]) -> tuple[BandSpread, ...]:
    """Sort pairs into bands by the geometric mean of the two times, which favors neither sweep."""
    logs: list[list[float]] = [[] for _ in BANDS_US]
    for first, second in pairs:
        logs[band_of(math.sqrt(first * second))].append(math.log(second / first))
    return tuple(
        BandSpread(
            band=name,
            pairs=len(found),
            median_ratio=math.exp(statistics.median(found)) if found else None,
            log_ratio_std=statistics.stdev(found) if len(found) > 1 else None,
        )
        for name, found in zip(_band_names(), logs, strict=True)
    )


def _band_names() -> Iterator[str]:
    edges = [0, *BANDS_US]
    for low, high in pairwise(edges):
        if math.isinf(high):
            yield f"from {low:g} us"
        else:
            yield f"{low:g} to {high:g} us" if low else f"under {high:g} us"


def _nothing_common(one: _Sweep, other: _Sweep) -> str:
    if not (one.timed.keys() & other.timed.keys()):
        return (
            f"the two have no problem in common (one has {len(one.timed)}, the other {len(other.timed)}); "
            "compare sweeps of the same problems on the same hardware in the same environment"
        )
    return "no config of a common problem has a time in both, only failures and estimates; measure the problems again"


def print_agreement(agreement: Agreement, *, as_json: bool = False, most: int = 20) -> None:
    """Print an agreement on stdout: as JSON, or as tables with the ``most`` problems that differ most."""
    import typer

    from diode_store.command_line.console import print_json, print_note, print_pairs, print_rows

    for other in agreement.other_regimes:
        print_note(_told(other))
    if as_json:
        print_json(agreement)
        return
    print_pairs(_overview(agreement))
    typer.echo()
    print_rows(
        ("runtime", "pairs", "median ratio", "std of log ratio"),
        [(band.band, band.pairs, band.median_ratio, band.log_ratio_std) for band in agreement.bands],
    )
    typer.echo()
    print_rows(_COLUMNS, [_row(problem) for problem in agreement.problems[:most]])
    if len(agreement.problems) > most:
        typer.echo(f"and {len(agreement.problems) - most} more that differ less")


def _told(other: OtherRegimes) -> str:
    names = (f"regime {regime}" if regime else "an unknown regime" for regime in (other.first, other.second))
    return (
        f"{counted(other.problems, 'problem')} timed in {' by the first and '.join(names)} by the second: ratios show "
        "that as well, so judge by winners and ties"
    )


_COLUMNS = ("op", "dtype", "B", "M", "N", "K", "layout", "ratio", "first us", "second us", "ties", "first", "second")


def _row(problem: ProblemAgreement) -> tuple[object, ...]:
    shape = problem.problem
    return (
        *(shape.op, shape.dtype, shape.b, shape.m, shape.n, shape.k, shape.layout),
        *(problem.ratio, problem.first_us, problem.second_us),
        problem.first_in_second and problem.second_in_first,
        *(problem.first_winner, problem.second_winner),
    )


def _overview(agreement: Agreement) -> dict[str, object]:
    best, left_out = agreement.best, agreement.left_out
    return {
        "problems": len(agreement.problems),
        "best time, second / first": best.median_ratio,
        "|log ratio| median": best.median,
        "|log ratio| p95": best.p95,
        "|log ratio| max": best.maximum,
        "first's winner in second's ties": f"{agreement.first_in_second_share:.1%}",
        "second's winner in first's ties": f"{agreement.second_in_first_share:.1%}",
        "same winner": f"{agreement.same_winner_share:.1%}",
        "left out": ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in vars(left_out).items() if n) or None,
    }
