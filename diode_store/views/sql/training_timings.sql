-- Prefer a failure with a reason to one without.
CREATE MACRO best_failure(failure) AS
    coalesce(min(failure) FILTER (failure <> 'failed_unspecified'), min(failure));

-- A model's training rows by ids alone: one row per (hardware, environment, problem, regime, config). Narrow rows can be
-- sorted and streamed in large numbers; training_examples has all columns.
CREATE VIEW training_timings AS
WITH seen AS MATERIALIZED (
    SELECT
        m.case_id,
        m.measurements,
        t.config_id::INTEGER AS config_id,
        CASE WHEN NOT t.is_estimate THEN t.runtime_us END AS timed_us,
        CASE WHEN t.is_estimate THEN t.runtime_us END AS estimate_us,
        CASE WHEN t.outcome <> 'ok' THEN t.outcome END AS failure
    FROM stored_timings AS t
    JOIN believed('stock') AS m ON m.id = t.measurement_id AND m.case_id = t.case_no
    WHERE is_plausible(t.runtime_us, t.p10_us, t.p90_us, m.least_us)
),
-- The median of two values costs no more than a sum.
pairs AS (
    SELECT
        case_id,
        config_id,
        avg(timed_us) AS timed_us,
        avg(estimate_us) AS estimate_us,
        best_failure(failure) AS failure,
        count(*) AS observations
    FROM seen
    WHERE measurements = 2
    GROUP BY case_id, config_id
),
several AS (
    SELECT
        case_id,
        config_id,
        median(timed_us) AS timed_us,
        median(estimate_us) AS estimate_us,
        best_failure(failure) AS failure,
        count(*) AS observations
    FROM seen
    WHERE measurements > 2
    GROUP BY case_id, config_id
),
examples AS (
    SELECT case_id, config_id, timed_us, estimate_us, failure, 1::BIGINT AS observations
    FROM seen
    WHERE measurements = 1
    UNION ALL
    FROM pairs
    UNION ALL
    FROM several
)
SELECT
    c.case_id,
    c.hardware_id,
    c.environment_id,
    c.problem_id,
    c.regime,
    c.family,
    x.config_id,
    coalesce(x.timed_us, x.estimate_us) AS runtime_us,
    CASE WHEN x.timed_us IS NULL AND x.estimate_us IS NULL THEN x.failure ELSE 'ok' END AS outcome,
    x.timed_us IS NULL AND x.estimate_us IS NOT NULL AS is_estimate,
    x.observations
FROM examples AS x
JOIN cases_of('stock') AS c USING (case_id);
