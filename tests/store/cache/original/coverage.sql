-- Counts of everything in `observations`, by hardware, environment and kind of problem.
CREATE VIEW coverage AS
WITH measured AS MATERIALIZED (
    SELECT
        m.id,
        m.problem_id,
        m.measured_at,
        m.hardware_id,
        m.environment_id,
        m.regime,
        p.op,
        p.dtype,
        asks_for_tf32(p.dtype, p.scalars) AS tf32,
        -- Grouping many timings by one number is much faster than by six columns.
        dense_rank() OVER (ORDER BY m.hardware_id, m.environment_id, m.regime, p.op, p.dtype, tf32) AS place
    FROM measurements AS m
    JOIN problems AS p ON p.id = m.problem_id
    WHERE m.superseded_by IS NULL AND m.id IN (SELECT measurement_id FROM timings)
),
of_config AS (
    SELECT
        m.place,
        t.config_id,
        count(*) AS timings,
        count(*) FILTER (t.outcome <> 'ok') AS failures,
        count(*) FILTER (t.is_estimate) AS estimates
    FROM timings AS t
    JOIN measured AS m ON m.id = t.measurement_id
    GROUP BY ALL
),
of_timings AS (
    SELECT
        place,
        count(*) AS configs,
        sum(timings)::BIGINT AS timings,
        sum(failures)::BIGINT AS failures,
        sum(estimates)::BIGINT AS estimates
    FROM of_config
    GROUP BY ALL
),
of_measurements AS (
    SELECT
        place,
        hardware_id,
        environment_id,
        regime,
        op,
        dtype,
        tf32,
        count(DISTINCT problem_id) AS problems,
        count(*) AS measurements,
        min(measured_at) AS first_measured_at,
        max(measured_at) AS last_measured_at
    FROM measured
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
    t.timings,
    t.failures,
    t.estimates,
    m.first_measured_at,
    m.last_measured_at
FROM of_measurements AS m
JOIN of_timings AS t USING (place)
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
ORDER BY hardware, m.hardware_id, m.environment_id, m.regime, m.op, m.dtype, m.tf32;
