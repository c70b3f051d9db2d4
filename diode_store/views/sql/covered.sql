-- The number of timings of each config among the problems of one kind, to count configs once. `weights` holds measurements
-- with 1, or with -1 for those that no longer count. The view coverage adds these up.
WITH weighted AS MATERIALIZED (
    SELECT
        m.id,
        w.weight,
        m.case_no,
        m.hardware_id,
        m.environment_id,
        m.regime,
        p.op,
        p.dtype,
        asks_for_tf32(p.dtype, p.scalars) AS tf32,
        -- Grouping many timings by one number is much faster than by six columns.
        dense_rank() OVER (ORDER BY m.hardware_id, m.environment_id, m.regime, p.op, p.dtype, tf32) AS kind
    FROM weights AS w
    JOIN stored_measurements AS m ON m.id = w.measurement_id
    JOIN problems AS p ON p.id = m.problem_id
),
counted AS (
    SELECT w.kind, t.config_id, sum(w.weight)::BIGINT AS timings
    FROM stored_timings AS t
    JOIN weighted AS w ON w.id = t.measurement_id
    GROUP BY ALL
    HAVING sum(w.weight) <> 0
)
SELECT k.hardware_id, k.environment_id, k.regime, k.op, k.dtype, k.tf32, c.config_id, c.timings
FROM counted AS c
JOIN (SELECT DISTINCT kind, hardware_id, environment_id, regime, op, dtype, tf32 FROM weighted) AS k USING (kind)
