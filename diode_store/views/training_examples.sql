-- What a model is trained on, by ids alone: one row a (hardware, environment, problem, config). Narrow, so that ten
-- million rows can be sorted and streamed; training_examples is the same with everything in words.
CREATE VIEW training_timings AS
WITH seen AS MATERIALIZED (
    SELECT
        m.case_id,
        m.measurements,
        t.config_id::INTEGER AS config_id,
        t.runtime_us,
        t.outcome,
        t.outcome = 'ok' AND NOT t.is_estimate AS is_timed,
        t.outcome = 'ok' AND t.is_estimate AS is_estimate
    FROM timings AS t
    JOIN believed('stock') AS m ON m.id = t.measurement_id
),
grouped AS (
    SELECT
        case_id,
        config_id,
        CASE WHEN any_value(measurements) = 2
            THEN sum(runtime_us) FILTER (is_timed) / count(*) FILTER (is_timed)
            ELSE median(runtime_us) FILTER (is_timed AND measurements > 2)
        END AS median_us,
        CASE WHEN any_value(measurements) = 2
            THEN sum(runtime_us) FILTER (is_estimate) / count(*) FILTER (is_estimate)
            ELSE median(runtime_us) FILTER (is_estimate AND measurements > 2)
        END AS estimate_us,
        -- A failure that says what it was is worth more than one that does not.
        coalesce(
            min(outcome) FILTER (outcome NOT IN ('ok', 'failed_unspecified')), min(outcome) FILTER (outcome <> 'ok')
        ) AS failure,
        count(*) AS observations
    FROM seen
    WHERE measurements > 1
    GROUP BY case_id, config_id
),
examples AS (
    SELECT
        case_id,
        config_id,
        CASE WHEN outcome = 'ok' THEN runtime_us END AS runtime_us,
        outcome,
        is_estimate,
        1::BIGINT AS observations
    FROM seen
    WHERE measurements = 1
    UNION ALL
    SELECT
        case_id,
        config_id,
        coalesce(median_us, estimate_us),
        CASE WHEN median_us IS NULL AND estimate_us IS NULL THEN failure ELSE 'ok' END,
        median_us IS NULL AND estimate_us IS NOT NULL,
        observations
    FROM grouped
)
SELECT
    c.case_id,
    c.hardware_id,
    c.environment_id,
    c.problem_id,
    x.config_id,
    x.runtime_us,
    x.outcome,
    x.is_estimate,
    x.observations
FROM examples AS x
JOIN cases_of('stock') AS c USING (case_id);

-- What a model is trained on: one row a (hardware, environment, problem, config), in a stable order.
CREATE VIEW training_examples AS
SELECT
    x.hardware_id,
    h.name AS hardware,
    h.vendor,
    h.arch,
    h.multiprocessors,
    h.l2_bytes,
    h.shared_memory_per_block_bytes,
    h.memory_bytes,
    h.memory_bandwidth_bytes_per_s,
    h.max_clock_mhz,
    x.environment_id,
    e.torch,
    x.problem_id,
    p.op,
    p.dtype,
    p.b,
    p.m,
    p.n,
    p.k,
    p.layout,
    asks_for_tf32(p.dtype, p.scalars) AS tf32,
    x.config_id,
    c.template,
    c.block_m,
    c.block_n,
    c.block_k,
    c.group_m,
    c.num_stages,
    c.num_warps,
    c.allow_tf32,
    c.template LIKE 'aten::%' AS is_vendor,
    x.runtime_us,
    x.outcome,
    x.is_estimate,
    x.observations
FROM training_timings AS x
JOIN hardware AS h ON h.id = x.hardware_id
JOIN environments AS e ON e.id = x.environment_id
JOIN problems AS p ON p.id = x.problem_id
JOIN configs AS c ON c.id = x.config_id
ORDER BY x.case_id, x.config_id;
