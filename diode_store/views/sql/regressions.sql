-- Configs, and best configs, that a change of environment made slower or faster beyond noise, on the same hardware, for
-- the same problem and regime. `before` is the environment measured first. Without known times, `before` is the one whose
-- first measurement was stored first.
CREATE VIEW regressions AS
WITH
-- include _times.sql
,
places AS (
    SELECT
        environment_id,
        row_number() OVER (ORDER BY min(coalesce(measured_at, ingested_at)), min(id)) AS place
    FROM measurements
    GROUP BY ALL
),
pairs AS (
    SELECT
        b.hardware_id,
        b.hardware,
        b.problem_id,
        b.case_id AS case_before,
        a.case_id AS case_after,
        b.environment_id AS environment_before,
        a.environment_id AS environment_after
    FROM cases AS b
    JOIN cases AS a
        ON a.hardware_id = b.hardware_id AND a.hardware = b.hardware AND a.problem_id = b.problem_id
        AND a.regime IS NOT DISTINCT FROM b.regime
    JOIN places AS first ON first.environment_id = b.environment_id
    JOIN places AS later ON later.environment_id = a.environment_id AND later.place > first.place
),
fastest AS (
    SELECT
        case_id,
        hardware_id,
        hardware,
        min({'us': runtime_us, 'config_id': config_id, 'repeats': repeats}) AS fastest
    FROM times
    GROUP BY ALL
),
-- Step by step: in one statement the planner may join every time of a config with every other.
before_times AS MATERIALIZED (
    SELECT pair.*, t.config_id, t.runtime_us, t.repeats
    FROM pairs AS pair
    JOIN times AS t ON t.case_id = pair.case_before AND t.hardware_id = pair.hardware_id AND t.hardware = pair.hardware
),
before_fastest AS MATERIALIZED (
    SELECT pair.*, f.fastest
    FROM pairs AS pair
    JOIN fastest AS f
        ON f.case_id = pair.case_before AND f.hardware_id = pair.hardware_id AND f.hardware = pair.hardware
),
compared AS (
    SELECT
        b.* EXCLUDE (config_id, runtime_us, repeats),
        'config' AS scope,
        b.config_id AS before_id,
        a.config_id AS after_id,
        b.runtime_us AS before_us,
        a.runtime_us AS after_us,
        b.repeats AS repeats_before,
        a.repeats AS repeats_after
    FROM before_times AS b
    JOIN times AS a
        ON a.case_id = b.case_after AND a.config_id = b.config_id AND a.hardware_id = b.hardware_id
        AND a.hardware = b.hardware
    UNION ALL
    SELECT
        b.* EXCLUDE (fastest),
        'best',
        b.fastest.config_id,
        a.fastest.config_id,
        b.fastest.us,
        a.fastest.us,
        b.fastest.repeats,
        a.fastest.repeats
    FROM before_fastest AS b
    JOIN fastest AS a ON a.case_id = b.case_after AND a.hardware_id = b.hardware_id AND a.hardware = b.hardware
),
noisy AS (
    SELECT
        c.*,
        least(c.before_us, c.after_us) AS faster_us,
        greatest(c.before_us, c.after_us) AS slower_us,
        coalesce(
            greatest(b.measured_sigma, a.measured_sigma),
            greatest(usual_sigma(faster_us, b.usual_sigmas), usual_sigma(faster_us, a.usual_sigmas))
        ) AS sigma
    FROM compared AS c
    JOIN limits AS b ON b.case_id = c.case_before
    JOIN limits AS a ON a.case_id = c.case_after
)
SELECT
    n.hardware_id,
    n.hardware::VARCHAR AS hardware,
    h.arch,
    h.multiprocessors,
    n.environment_before AS environment_id_before,
    n.environment_after AS environment_id_after,
    before.torch AS torch_before,
    after.torch AS torch_after,
    before.triton AS triton_before,
    after.triton AS triton_after,
    before.compute AS compute_before,
    after.compute AS compute_after,
    before.driver AS driver_before,
    after.driver AS driver_after,
    k.regime,
    -- include _problem.sql
    n.scope,
    n.before_id AS config_id_before,
    n.after_id AS config_id_after,
    c.template AS template_before,
    d.template AS template_after,
    n.before_us AS runtime_us_before,
    n.after_us AS runtime_us_after,
    n.repeats_before,
    n.repeats_after,
    n.after_us / n.before_us AS ratio,
    CASE WHEN n.after_us > n.before_us THEN 'slower' ELSE 'faster' END AS verdict,
    n.sigma,
    (n.slower_us / n.faster_us - 1) / n.sigma AS sigmas
FROM noisy AS n
JOIN cases AS k ON k.case_id = n.case_before
JOIN hardware AS h ON h.id = n.hardware_id
JOIN environments AS before ON before.id = n.environment_before
JOIN environments AS after ON after.id = n.environment_after
JOIN problems AS p ON p.id = n.problem_id
JOIN configs AS c ON c.id = n.before_id
JOIN configs AS d ON d.id = n.after_id
WHERE n.slower_us > noise_limit(n.faster_us, n.sigma)
ORDER BY n.scope, ratio DESC, n.hardware_id, n.environment_before, n.problem_id, k.regime,
    n.environment_after, n.before_id;
