"""All kernels of one matrix product on one device: times, ties with the best, and a command to measure again."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from diode_collectors.problems.problem import SweepProblem
from diode_explorer.pages import cases
from diode_explorer.pages.page import NotThereError, Page, Parameter
from diode_explorer.pages.problem.picture import times_picture
from diode_explorer.pages.problem.ranking import MODEL, Ranking, cautions, ranking_of
from diode_store.candidates.default_space import TEMPLATES, default_configs
from diode_store.command_line.render import counted
from diode_store.devices.descriptor import describe
from diode_store.errors import SettingsError
from diode_store.ops import OPS
from diode_store.ops.attending import BACKWARD
from diode_store.ops.fused import is_fused
from diode_store.ops.work import flops
from diode_store.records import TimingMethod
from diode_store.timing.roofline import roofline
from diode_trainer.report.parts import COUNT, NUMBER, TIME, Column, Command, Fact, Facts, Picture, Table
from diode_trainer.report.questions import Extended, Question, where

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from diode_explorer.pages.page import Asked
    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.report.parts import Part
    from diode_trainer.report.questions import Value

_CASE = f"""\
SELECT
    b.*, {cases.PROBLEM_TEXT} AS problem, {cases.REGIME} AS regime_name,
    h.* EXCLUDE (id, key, arch, multiprocessors, extra), e.compute, e.driver
FROM best_times AS b
JOIN hardware AS h ON h.id = b.hardware_id
JOIN environments AS e ON e.id = b.environment_id
{{where}}ORDER BY {cases.NEAREST_FIRST}
LIMIT 1"""  # noqa: S608 - our own text; values are parameters

_FOUND = f"""\
SELECT
    {cases.PROBLEM_TEXT} AS problem,
{cases.CASE_COLUMNS},
    torch,
    configs,
    best_us,
    vendor_us,
    vendor_us / triton_us AS speedup,
    last_measured_at
FROM best_times
{{where}}ORDER BY configs DESC, problem, hardware, environment_id DESC, regime"""  # noqa: S608 - as above

_TIMES = """\
WITH runs AS (
    SELECT t.config_id, t.runtime_us, t.p10_us, t.p90_us
    FROM stored_timings AS t
    JOIN numbered_measurements AS m ON m.id = t.measurement_id AND m.case_no = t.case_no
    JOIN problems AS p ON p.id = m.problem_id
    JOIN hardware AS h ON h.id = m.hardware_id
    JOIN environments AS e ON e.id = m.environment_id
    JOIN known_cases AS b ON b.case_no = m.case_no
    WHERE p.key = unhex($problem) AND e.key = unhex($environment)
        AND h.name = $device AND h.arch = $arch AND h.multiprocessors = $multiprocessors
        AND coalesce(m.regime, '(unknown)') = $regime
        AND NOT m.is_replay AND m.flags IS NULL AND m.superseded_by IS NULL
        AND t.outcome = 'ok' AND NOT t.is_estimate
        AND is_plausible(t.runtime_us, t.p10_us, t.p90_us, b.least_us)
),
times AS (
    SELECT
        config_id,
        median(runtime_us) AS runtime_us,
        min(p10_us) AS p10_us,
        max(p90_us) AS p90_us,
        count(*) AS repeats
    FROM runs
    GROUP BY config_id
)
SELECT
    row_number() OVER (ORDER BY t.runtime_us, t.config_id) AS place,
    c.template,
    c.block_m,
    c.block_n,
    c.block_k,
    c.group_m,
    c.num_stages,
    c.num_warps,
    c.kwargs,
    named_blocks(c.kwargs) AS blocks,
    c.allow_tf32,
    t.runtime_us,
    t.runtime_us / min(t.runtime_us) OVER () AS ratio,
    t.p10_us,
    t.p90_us,
    t.repeats,
    t.runtime_us <= $tie_us AS is_tie,
    c.template LIKE 'aten::%' AS is_vendor,
    {is_default} AS is_default
FROM times AS t
JOIN configs AS c ON c.id = t.config_id
ORDER BY place"""

_ELSEWHERE = f"""\
SELECT
{cases.CASE_COLUMNS},
    torch,
    triton,
    template,
    best_us,
    vendor_us,
    configs,
    measurements,
    last_measured_at,
    hardware = $device AND arch = $arch AND multiprocessors = $multiprocessors
        AND environment_key = $environment AND {cases.REGIME} = $regime AS is_this
FROM best_times
WHERE problem_key = $problem
ORDER BY hardware, environment_id DESC, regime_rank(regime), regime"""  # noqa: S608 - as above

_WHERE = ("device", "environment", "regime")
_NUMBERS = {
    "block_m": "BLOCK_M",
    "block_n": "BLOCK_N",
    "block_k": "BLOCK_K",
    "group_m": "GROUP_M",
    "num_stages": "stages",
    "num_warps": "warps",
}
"""Columns of a config → their heads."""
_OF_PRODUCTS = tuple(Column(name, head, COUNT) for name, head in _NUMBERS.items())
_OF_NAMED_BLOCKS = (Column("blocks", "blocks"), *_OF_PRODUCTS[-2:])
"""Columns of a config whose blocks have names, as those of fused kernels and of attention's gradients do."""
_RANKED = (Column("predicted_us", "predicted, us", NUMBER, 2), Column("model_place", "model's place", COUNT))
_MOST = 100
"""Maximum configs in the table; the picture has all."""
_SPEEDUP = Column("speedup", "vendor / Triton", NUMBER, 3)


def _parts(asked: Asked) -> Iterator[Part]:
    if "problem" not in asked.filters:
        yield _found(asked.filters)
        return
    case = _case(asked)
    shape = cases.shape_of(case) if case["m"] is not None else None
    values = {
        "problem": case["problem_key"],
        "device": case["hardware"],
        # Two device models may share a name.
        "arch": case["arch"],
        "multiprocessors": case["multiprocessors"],
        "environment": case["environment_key"],
        "regime": case["regime_name"],
        "tie_us": case["tie_us"],
    }
    times = Question(_TIMES.format(is_default=_is_default(shape)), values)
    yield _facts(asked, case, shape)
    ranking = None if shape is None else ranking_of(asked, shape, _hardware_of(case), case["regime"])
    source: Question | Extended = times
    if isinstance(ranking, Ranking):
        answer = asked.ask(times)
        prediction = ranking.predict(answer)
        source = ranking.beside(times, answer, prediction)
        yield ranking.facts(asked, answer, prediction)
        yield from cautions(ranking)
    elif ranking is not None:
        yield ranking
    yield _picture(source, case)
    if shape and (command := _command(shape, case)):
        yield command
    yield _table(source, _OF_NAMED_BLOCKS if is_fused(case["op"]) or case["op"] == BACKWARD else _OF_PRODUCTS)
    yield _elsewhere(values)


def _found(filters: Mapping[str, Value]) -> Table:
    """Return the known problems, to choose one."""
    condition = where(cases.CONDITIONS, filters)
    return Table(
        "problems",
        "Problems",
        "A row for each environment and regime of a problem. Those with most configs come first.",
        (
            Column("problem", "problem", link=cases.TO_PROBLEM),
            Column("hardware", "device"),
            Column("torch", "torch"),
            Column("regime_name", "regime"),
            cases.CONFIGS,
            cases.BEST_US,
            cases.VENDOR_US,
            _SPEEDUP,
            Column("last_measured_at", "last measured, UTC", TIME),
        ),
        Question(_FOUND.format(where=condition), filters),
        "Nothing is measured yet.",
    )


def _case(asked: Asked) -> dict[str, Any]:
    """Return the case of the address: of several, the nearest to deployment that was measured last."""
    wanted = {name: asked.filters[name] for name in ("device", "environment", "regime") if name in asked.filters}
    condition = where({"problem": "problem_key", **cases.CONDITIONS}, {**wanted, "problem": asked.filters["problem"]})
    found = asked.ask(Question(_CASE.format(where=condition), asked.filters)).dicts()
    if not found:
        raise NotThereError(
            "no such problem was timed with these filters; remove the device, environment or regime, or search again"
        )
    return found[0]


def _hardware_of(case: Mapping[str, Any]) -> Hardware:
    return cases.hardware_of({**case, "name": case["hardware"]})


def _is_default(shape: ProblemShape | None) -> str:
    """Return SQL for whether a config is in Inductor's DEFAULT list for a problem; NULL for ops with other lists."""
    if shape is None or not OPS[shape.op].is_standard:
        return "NULL::BOOLEAN"
    configs = ", ".join(str(tuple(config)) for config in sorted(default_configs(shape)))
    templates = ", ".join(f"'{name}'" for name in sorted(TEMPLATES))
    return (
        f"c.template IN ({templates}) AND (c.block_m, c.block_n, c.block_k, c.num_stages, c.num_warps) IN ({configs})"
    )


def _facts(asked: Asked, case: Mapping[str, Any], shape: ProblemShape | None) -> Facts:
    best_us, vendor_us = case["best_us"], case["vendor_us"]
    device = asked.address("overview", {"device": case["hardware"]})
    facts = [
        Fact("device", case["hardware"], case["arch"], device),
        Fact(
            "environment",
            f"torch {case['torch']}",
            f"triton {case['triton']}, {case['compute']}, driver {case['driver']}",
        ),
        Fact("regime", case["regime_name"]),
        Fact("best", f"{best_us:,.2f} us", f"{case['template']}, of {counted(case['configs'], 'config')}"),
    ]
    if shape is not None:
        least_us = roofline(shape, describe(_hardware_of(case))).us
        speed = f"{flops(shape) / best_us / 1e6:,.1f} TFLOP/s"
        facts.append(Fact("speed", speed, f"{100 * least_us / best_us:.0f}% of the roofline's"))
    if vendor_us is not None:
        facts.append(Fact("vendor", f"{vendor_us:,.2f} us", f"{vendor_us / best_us:.3f} of the best"))
    facts.append(Fact("ties up to", f"{case['tie_us']:,.2f} us", f"sigma {100 * case['sigma']:.1f}%"))
    if case["family"]:
        facts.append(Fact("family", case["family"]))
    return Facts("problem", case["problem"], tuple(facts))


def _picture(times: Question | Extended, case: Mapping[str, Any]) -> Picture:
    dashes = " Dashes are the model's predictions." if isinstance(times, Extended) else ""
    return Picture(
        "times",
        "Times, sorted",
        "Every config by place, the fastest first. The band holds its ties. Bars span the 10th to the 90th percentile"
        f" of a config's runs, if known.{dashes}",
        times,
        lambda rows: times_picture(rows, case),
    )


def _command(shape: ProblemShape, case: Mapping[str, Any]) -> Command | None:
    try:
        problem = SweepProblem.of_shape(shape)
    except SettingsError:
        return None
    words = ["diode-collect", "--shape", str(problem), "--search-space", "EXHAUSTIVE"]
    # Otherwise the sweep would time the problem in another regime than this page's.
    words += ["--timing", "write-flush"] if TimingMethod(regime=case["regime"]).has_write_flush else []
    return Command(
        "reproduce",
        "Measure it again",
        f"Run this on a machine with {case['hardware']}, then `diode-ingest --once`.",
        shlex.join(words),
    )


def _table(times: Question | Extended, columns: Sequence[Column]) -> Table:
    return Table(
        "configs",
        "Configs",
        "The fastest first. Its ties are bold.",
        (
            Column("place", "place", COUNT),
            Column("template", "template"),
            *columns,
            Column("runtime_us", "time, us", NUMBER, 2),
            Column("ratio", "time / best", NUMBER, 3),
            *(_RANKED if isinstance(times, Extended) else ()),
            Column("p10_us", "P10, us", NUMBER, 2),
            Column("p90_us", "P90, us", NUMBER, 2),
            Column("repeats", "repeats", COUNT),
            Column("is_default", "DEFAULT"),
        ),
        times,
        most=_MOST,
        marked="is_tie",
    )


def _elsewhere(values: Mapping[str, Value]) -> Table:
    return Table(
        "elsewhere",
        "On other devices, in other environments and regimes",
        "All timings of this problem. The bold row is this page's.",
        (
            Column("hardware", "device", link=cases.TO_PROBLEM),
            Column("torch", "torch"),
            Column("triton", "triton"),
            Column("regime_name", "regime"),
            Column("template", "best template"),
            cases.BEST_US,
            cases.VENDOR_US,
            cases.CONFIGS,
            Column("measurements", "measurements", COUNT),
            Column("last_measured_at", "last measured, UTC", TIME),
        ),
        Question(_ELSEWHERE, values),
        marked="is_this",
    )


PROBLEM = Page(
    "problem",
    "Problem",
    "All configs of one problem on one device.",
    (
        Parameter("problem", "problem", is_shown=False),
        cases.DEVICE,
        cases.ENVIRONMENT,
        cases.REGIME_OF,
        MODEL,
        cases.OP,
        cases.DTYPE,
        cases.LAYOUT,
        *cases.SIZES,
    ),
    _parts,
    fields=lambda filters: (
        (*_WHERE, "model") if "problem" in filters else (*_WHERE, "op", "dtype", "layout", "b", "m", "n", "k")
    ),
)
