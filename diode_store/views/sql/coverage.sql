-- Counts of everything in `observations`, by hardware, environment and kind of problem.
CREATE VIEW coverage AS
WITH of_measurements AS (
    SELECT
        m.hardware_id,
        m.environment_id,
        m.regime,
        p.op,
        p.dtype,
        asks_for_tf32(p.dtype, p.scalars) AS tf32,
        count(DISTINCT m.problem_id) AS problems,
        count(*) AS measurements,
        sum(m.timing_count)::BIGINT AS timings,
        sum(m.failure_count)::BIGINT AS failures,
        sum(m.estimate_count)::BIGINT AS estimates,
        min(m.measured_at) AS first_measured_at,
        max(m.measured_at) AS last_measured_at
    FROM numbered_measurements AS m
    JOIN problems AS p ON p.id = m.problem_id
    WHERE m.superseded_by IS NULL AND m.timing_count > 0
    GROUP BY ALL
),
of_configs AS (
    SELECT hardware_id, environment_id, regime, op, dtype, tf32, count(*) AS configs
    FROM (
        SELECT hardware_id, environment_id, regime, op, dtype, tf32, config_id
        FROM covered
        GROUP BY ALL
        HAVING sum(timings) > 0
    )
    GROUP BY ALL
)
SELECT
    m.hardware_id,
    h.name AS hardware,
    h.arch,
    h.multiprocessors,
    m.environment_id,
    e.torch,
    e.triton,
    e.compute,
    e.driver,
    m.regime,
    m.op,
    m.dtype,
    m.tf32,
    m.problems,
    t.configs,
    m.measurements,
    m.timings,
    m.failures,
    m.estimates,
    m.first_measured_at,
    m.last_measured_at
FROM of_measurements AS m
JOIN of_configs AS t
    ON t.hardware_id = m.hardware_id AND t.environment_id = m.environment_id AND t.op = m.op AND t.dtype = m.dtype
    AND t.regime IS NOT DISTINCT FROM m.regime AND t.tf32 IS NOT DISTINCT FROM m.tf32
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
ORDER BY hardware, m.hardware_id, m.environment_id, m.regime, m.op, m.dtype, m.tf32;
