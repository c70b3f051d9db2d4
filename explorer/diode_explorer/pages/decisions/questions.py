"""Queries of the decisions page: decisions, picks and their cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_explorer.judging.models import known_models
from diode_explorer.pages import cases
from diode_store.records import WRITE_FLUSH
from diode_store.values.sql import quoted
from diode_trainer.data.regimes import WRITE_FLUSH_US
from diode_trainer.report.questions import Question, where

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diode_trainer.report.questions import Value

UNKNOWN = cases.UNKNOWN
_HOST = f"coalesce(host, '{UNKNOWN}')"
_OF_DECISIONS = {
    "device": "hardware",
    "op": "op",
    "dtype": "arithmetic",
    "mode": "mode",
    "policy": "policy",
    "decided_by": "decided_by",
    "model": "model_sha256",
    "machine": _HOST,
}
"""Parameter → column or expression of a decision that must equal its value."""
_OF_PICKS = {**{name: name for name in ("op", "mode", "policy", "decided_by")}, "device": "hardware"} | {
    "dtype": cases.ARITHMETIC,
    "model": "model_sha256",
}
_GROUP = "hardware_id, problem_id, coalesce(model_sha256, ''), policy, decided_by, observed"
"""Columns that identify a row of ``regret``."""
_MADE_BY = f"({_GROUP}, decided_at) IN (SELECT {_GROUP}, decided_at FROM decisions WHERE {_HOST} = $machine)"  # noqa: S608 - our own text
MOST_CURVES = 4
_WITHIN = 1.02


def model_sql() -> str:
    """Return SQL for a model's name: its file's if the model is here, else the beginning of its SHA-256."""
    named = "".join(
        f" WHEN '{model.card.sha256}' THEN {quoted(model.name)}"
        for model in known_models()
        if model.card is not None and model.card.sha256.isalnum()
    )
    return f"CASE model_sha256{named} ELSE left(model_sha256, 12) END" if named else "left(model_sha256, 12)"


def _decided(filters: Mapping[str, Value], *more: str) -> str:
    """Return the beginning of a query, with the filtered decisions as ``decided``."""
    return f"""\
WITH decided AS (
    SELECT *, {model_sql()} AS model
    FROM (
        SELECT
            d.*,
            h.name AS hardware,
            p.op,
            CASE WHEN asks_for_tf32(p.dtype, p.scalars) THEN 'tf32' ELSE p.dtype END AS arithmetic
        FROM decisions AS d
        JOIN hardware AS h ON h.id = d.hardware_id
        JOIN problems AS p ON p.id = d.problem_id
    )
    {where(_OF_DECISIONS, filters, *more).rstrip()}
)"""  # noqa: S608 - our own text; values are parameters


def _picked(filters: Mapping[str, Value], *more: str) -> str:
    """Return a common table expression ``picked``: the filtered picks with their cost.

    Predicted times are in the regime of the pick's measurement.
    """
    made_by = (_MADE_BY,) if "machine" in filters else ()
    return f"""\
picked AS (
    SELECT
        r.* REPLACE (
            predicted_us + CASE WHEN regime = '{WRITE_FLUSH}' THEN {WRITE_FLUSH_US} ELSE 0 END AS predicted_us
        ),
        p.problem_key,
        e.environment_key,
        {cases.REGIME} AS regime_name,
        {cases.PROBLEM_TEXT} AS problem,
        concat_ws(
            ' ', template, block_m || 'x' || block_n || 'x' || block_k, 's' || num_stages, 'w' || num_warps
        ) AS pick,
        {model_sql()} AS model
    FROM regret AS r
    JOIN (SELECT id, lower(hex(key)) AS problem_key FROM problems) AS p ON p.id = r.problem_id
    LEFT JOIN (SELECT id, lower(hex(key)) AS environment_key FROM environments) AS e ON e.id = r.environment_id
    {where(_OF_PICKS, filters, *made_by, *more).rstrip()}
)"""  # noqa: S608 - as above


def decided(filters: Mapping[str, Value]) -> Question:
    """Return one row: the number of decisions by source and outcome."""
    sql = f"""{_decided(filters)}
SELECT
    count(*) AS decisions,
    count(DISTINCT (hardware_id, problem_id)) AS problems,
    count(*) FILTER (decided_by = 'model') AS by_model,
    count(*) FILTER (decided_by = 'vendor') AS by_vendor,
    count(*) FILTER (decided_by = 'stock') AS by_stock,
    count(*) FILTER (decided_by = 'picks') AS by_picks,
    count(*) FILTER (decided_by = 'model' AND json_array_length(kept) = 1) AS alone,
    count(*) FILTER (observed) AS observed,
    count(*) FILTER (failure IS NOT NULL) AS failed,
    median(seconds) AS seconds,
    min(decided_at) AS first_at,
    max(decided_at) AS last_at
FROM decided"""  # noqa: S608 - as above
    return Question(sql, filters)


def cost(filters: Mapping[str, Value]) -> Question:
    """Return one row: the cost of the measured picks."""
    sql = f"""WITH {_picked(filters)}
SELECT
    count(*) AS picks,
    count(regret) AS measured,
    exp(avg(ln(regret))) AS regret,
    max(regret) AS worst,
    avg((regret <= {_WITHIN})::INTEGER) AS within,
    avg(is_tie::INTEGER) AS tied,
    exp(avg(ln(picked_us / vendor_us))) AS of_vendor,
    count(*) FILTER (regret IS NULL) AS unmeasured
FROM picked"""  # noqa: S608 - as above
    return Question(sql, filters)


def by_policy(filters: Mapping[str, Value]) -> Question:
    """Return a row for each source, model and policy."""
    sql = f"""{_decided(filters)},
{_picked(filters)},
costs AS (
    SELECT
        decided_by,
        model_sha256,
        policy,
        count(*) AS picks,
        count(regret) AS measured,
        exp(avg(ln(regret))) AS regret,
        100 * avg((regret <= {_WITHIN})::INTEGER) AS within_pct,
        max(regret) AS worst,
        exp(avg(ln(picked_us / vendor_us))) AS of_vendor
    FROM picked
    GROUP BY ALL
)
SELECT
    d.decided_by,
    d.model,
    d.model_sha256,
    d.mode,
    d.policy,
    count(*) AS decisions,
    avg(json_array_length(d.kept)) FILTER (d.config_id IS NOT NULL) AS kept,
    any_value(c.measured) AS measured,
    any_value(c.regret) AS regret,
    any_value(c.within_pct) AS within_pct,
    any_value(c.worst) AS worst,
    any_value(c.of_vendor) AS of_vendor,
    max(d.decided_at) AS last_at
FROM decided AS d
LEFT JOIN costs AS c
    ON c.decided_by = d.decided_by AND c.policy = d.policy AND c.model_sha256 IS NOT DISTINCT FROM d.model_sha256
GROUP BY d.decided_by, d.model, d.model_sha256, d.mode, d.policy
ORDER BY decisions DESC, d.decided_by, d.model, d.policy"""  # noqa: S608 - as above
    return Question(sql, filters)


def curves(filters: Mapping[str, Value]) -> Question:
    """Return the percentiles of the loss of picks, for the ``MOST_CURVES`` models with the most picks."""
    sql = f"""WITH {_picked(filters, "regret IS NOT NULL")},
named AS (
    SELECT coalesce(model, decided_by) AS ranking, 100 * (regret - 1) AS loss_pct FROM picked
),
most AS (
    SELECT ranking, count(*) AS picks FROM named GROUP BY ranking ORDER BY picks DESC, ranking LIMIT {MOST_CURVES}
)
SELECT
    ranking,
    unnest(quantile_disc(loss_pct, [share / 100 FOR share IN range(0, 101)])) AS loss_pct,
    unnest(range(0, 101)) AS share_pct
FROM named
JOIN most USING (ranking)
GROUP BY ranking, picks
ORDER BY picks DESC, ranking, share_pct"""  # noqa: S608 - as above
    return Question(sql, filters)


def worst(filters: Mapping[str, Value]) -> Question:
    """Return the measured picks, the costliest first."""
    sql = f"""WITH {_picked(filters, "regret IS NOT NULL")}
FROM picked
ORDER BY regret DESC, problem, hardware, decided_at DESC"""
    return Question(sql, filters)


def unmeasured(filters: Mapping[str, Value]) -> Question:
    """Return the picks without measurements, the most frequent first."""
    sql = f"""WITH {_picked(filters, "regret IS NULL")}
FROM picked
ORDER BY decisions DESC, problem, hardware, decided_at DESC"""
    return Question(sql, filters)


def abstentions(filters: Mapping[str, Value]) -> Question:
    """Return the reasons why no model decided, with their counts."""
    sql = f"""{_decided(filters, "decided_by IN ('vendor', 'stock')")}
SELECT
    split_part(reason, ':', 1) AS why,
    decided_by,
    count(*) AS decisions,
    count(DISTINCT (hardware_id, problem_id)) AS problems,
    mode(reason ORDER BY reason) AS example,
    max(decided_at) AS last_at
FROM decided
GROUP BY why, decided_by
ORDER BY decisions DESC, why, decided_by"""  # noqa: S608 - as above
    return Question(sql, filters)


def failures(filters: Mapping[str, Value]) -> Question:
    """Return the reasons why graphs with a pick failed to compile, with their counts."""
    sql = f"""{_decided(filters, "failure IS NOT NULL")}
SELECT failure, count(*) AS decisions, max(decided_at) AS last_at
FROM decided
GROUP BY failure
ORDER BY decisions DESC, failure"""  # noqa: S608 - as above
    return Question(sql, filters)
