-- The named views of the warehouse, for DuckDB over the lake's tables: hardware, environments, problems, configs,
-- measurements (with what `marks` says of each) and timings. docs/views.md says what each column means; a test
-- compares the two, and another executes every view against rows worked out by hand.
--
-- Two kinds of measurement never count: deleted ones, which the tables leave out, and superseded ones, which the
-- views leave out. `trusted` also leaves out replays and flagged ones.

CREATE VIEW measurements AS
SELECT segment.*, marks.flags, marks.superseded_by
FROM segment_measurements AS segment
LEFT JOIN marks ON marks.id = segment.id;

-- One row a timing, with everything that is known of it; failures included.
CREATE VIEW observations AS
SELECT
    lower(hex(m.uid)) AS measurement_uid,
    m.id AS measurement_id,
    m.hardware_id,
    h.name AS hardware,
    h.vendor,
    h.arch,
    h.multiprocessors,
    h.l2_bytes,
    h.shared_memory_per_block_bytes,
    h.memory_bytes,
    h.memory_bandwidth_bytes_per_s,
    h.max_clock_mhz,
    m.environment_id,
    e.torch,
    e.triton,
    e.compute,
    e.driver,
    e.python,
    e.os,
    m.problem_id,
    p.op,
    p.dtype,
    p.b,
    p.m,
    p.n,
    p.k,
    p.layout,
    p.dtype = 'float32' AND contains(replace(p.scalars, ' ', ''), '["ALLOW_TF32",true]') AS tf32,
    p.inputs,
    p.scalars,
    t.config_id,
    c.template,
    c.block_m,
    c.block_n,
    c.block_k,
    c.group_m,
    c.num_stages,
    c.num_warps,
    c.allow_tf32,
    c.use_fast_accum,
    c.acc_type,
    c.kwargs,
    c.template LIKE 'aten::%' AS is_vendor,
    t.runtime_us,
    t.outcome,
    t.is_estimate,
    t.repeats,
    t.p10_us,
    t.p90_us,
    m.source,
    m.measured_at,
    m.ingested_at,
    m.is_replay,
    m.search_space,
    m.sample_seed,
    m.choice_policy,
    m.statistic,
    m.flush_l2,
    m.launch_hidden,
    m.sm_clock_mhz,
    m.memory_clock_mhz,
    m.temperature_c,
    m.throttle_reasons,
    m.foreign_processes,
    m.flags,
    m.dataset,
    m.licence,
    m.sweep_id,
    m.host,
    m.device_uuid,
    m.collector_version
FROM timings AS t
JOIN measurements AS m ON m.id = t.measurement_id
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
JOIN problems AS p ON p.id = m.problem_id
JOIN configs AS c ON c.id = t.config_id
WHERE m.superseded_by IS NULL;

-- The timings of measurements that may be believed. Inside the other views only.
-- A case is a (hardware, environment, problem), named by the lowest id of its measurements: grouping ten million
-- timings by one number takes a third of the time that grouping by three does.
CREATE VIEW trusted AS
SELECT m.case_id, m.choice_policy, t.*
FROM timings AS t
JOIN (
    SELECT id, choice_policy, min(id) OVER (PARTITION BY hardware_id, environment_id, problem_id) AS case_id
    FROM measurements
    WHERE NOT is_replay AND flags IS NULL AND superseded_by IS NULL
) AS m ON m.id = t.measurement_id;

-- One row a (case, config): its median over measurements, and how much they differ. Inside the other views only.
CREATE VIEW config_times AS
SELECT
    case_id,
    config_id,
    median(runtime_us) AS runtime_us,
    count(*) AS repeats,
    var_samp(runtime_us) / avg(runtime_us) ** 2 AS relative_variance
FROM trusted
WHERE outcome = 'ok' AND NOT is_estimate
GROUP BY ALL;

-- The best config of each (hardware, environment, problem), and which others one cannot tell from it.
-- The usual sigmas are those of diode_store/noise.py, where Python has them; a test compares the two.
-- The minimum of a struct is deterministic where times are equal, and much faster than a window with two sort keys.
CREATE VIEW fastest_configs AS
WITH times AS MATERIALIZED (
    FROM config_times
),
ranked AS (
    SELECT
        case_id,
        min({'us': runtime_us, 'config_id': config_id}, 2) AS best,
        count(*) AS configs,
        sqrt(
            sum((repeats - 1) * relative_variance) FILTER (repeats > 1) / sum(repeats - 1) FILTER (repeats > 1)
        ) AS measured_sigma
    FROM times
    GROUP BY ALL
),
winners AS (
    SELECT
        case_id,
        configs,
        best[1].config_id AS config_id,
        best[1].us AS runtime_us,
        best[2].config_id AS runner_up_config_id,
        best[2].us AS runner_up_us,
        coalesce(
            measured_sigma,
            CASE WHEN best[1].us < 10 THEN 0.11 WHEN best[1].us < 30 THEN 0.07 ELSE 0.017 END
        ) AS sigma
    FROM ranked
),
ties AS (
    SELECT
        case_id,
        list(times.config_id ORDER BY times.runtime_us, times.config_id) AS tie_config_ids,
        max(times.repeats) FILTER (times.config_id = winners.config_id) AS repeats
    FROM times
    JOIN winners USING (case_id)
    WHERE times.runtime_us <= winners.runtime_us * (1 + 2 * winners.sigma)
    GROUP BY ALL
)
SELECT
    m.hardware_id,
    h.name AS hardware,
    h.vendor,
    h.arch,
    h.multiprocessors,
    h.l2_bytes,
    h.shared_memory_per_block_bytes,
    h.memory_bytes,
    h.memory_bandwidth_bytes_per_s,
    h.max_clock_mhz,
    m.environment_id,
    e.torch,
    e.triton,
    e.compute,
    e.driver,
    m.problem_id,
    p.op,
    p.dtype,
    p.b,
    p.m,
    p.n,
    p.k,
    p.layout,
    p.inputs,
    p.scalars,
    w.config_id,
    c.template,
    c.block_m,
    c.block_n,
    c.block_k,
    c.group_m,
    c.num_stages,
    c.num_warps,
    c.allow_tf32,
    c.use_fast_accum,
    c.acc_type,
    c.kwargs,
    c.template LIKE 'aten::%' AS is_vendor,
    w.runtime_us,
    w.runner_up_config_id,
    w.runner_up_us,
    t.tie_config_ids,
    w.sigma,
    t.repeats,
    w.configs
FROM winners AS w
JOIN ties AS t USING (case_id)
JOIN measurements AS m ON m.id = w.case_id
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
JOIN problems AS p ON p.id = m.problem_id
JOIN configs AS c ON c.id = w.config_id;

-- What a model is trained on: one row a (hardware, environment, problem, config), in a stable order.
CREATE VIEW training_examples AS
WITH examples AS (
    SELECT
        case_id,
        config_id,
        median(runtime_us) FILTER (outcome = 'ok' AND NOT is_estimate) AS median_us,
        median(runtime_us) FILTER (outcome = 'ok' AND is_estimate) AS estimate_us,
        -- A failure that says what it was is worth more than one that does not.
        coalesce(
            min(outcome) FILTER (outcome NOT IN ('ok', 'failed_unspecified')), min(outcome) FILTER (outcome <> 'ok')
        ) AS failure,
        count(*) AS observations
    FROM trusted
    WHERE choice_policy = 'stock'
    GROUP BY ALL
)
SELECT
    m.hardware_id,
    h.name AS hardware,
    h.vendor,
    h.arch,
    h.multiprocessors,
    h.l2_bytes,
    h.shared_memory_per_block_bytes,
    h.memory_bytes,
    h.memory_bandwidth_bytes_per_s,
    h.max_clock_mhz,
    m.environment_id,
    e.torch,
    m.problem_id,
    p.op,
    p.dtype,
    p.b,
    p.m,
    p.n,
    p.k,
    p.layout,
    p.dtype = 'float32' AND contains(replace(p.scalars, ' ', ''), '["ALLOW_TF32",true]') AS tf32,
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
    coalesce(x.median_us, x.estimate_us) AS runtime_us,
    CASE WHEN x.median_us IS NULL AND x.estimate_us IS NULL THEN x.failure ELSE 'ok' END AS outcome,
    x.median_us IS NULL AND x.estimate_us IS NOT NULL AS is_estimate,
    x.observations
FROM examples AS x
JOIN measurements AS m ON m.id = x.case_id
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
JOIN problems AS p ON p.id = m.problem_id
JOIN configs AS c ON c.id = x.config_id
ORDER BY m.hardware_id, m.environment_id, m.problem_id, x.config_id;

-- What has been measured where; everything that `observations` shows.
CREATE VIEW coverage AS
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
    p.op,
    p.dtype,
    count(DISTINCT m.problem_id) AS problems,
    count(DISTINCT t.config_id) AS configs,
    count(DISTINCT m.id) AS measurements,
    count(*) AS timings,
    count(*) FILTER (t.outcome <> 'ok') AS failures,
    count(*) FILTER (t.is_estimate) AS estimates,
    min(m.measured_at) AS first_measured_at,
    max(m.measured_at) AS last_measured_at
FROM timings AS t
JOIN measurements AS m ON m.id = t.measurement_id
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
JOIN problems AS p ON p.id = m.problem_id
WHERE m.superseded_by IS NULL
GROUP BY ALL
ORDER BY hardware, m.hardware_id, m.environment_id, p.op, p.dtype;

-- The best Triton kernel against the vendor's best, where both were timed; a speedup over 1 means Triton wins.
CREATE VIEW vendor_gap AS
WITH best AS (
    SELECT
        x.case_id,
        min({'us': x.runtime_us, 'config_id': x.config_id}) FILTER (c.template LIKE 'aten::%') AS vendor,
        min({'us': x.runtime_us, 'config_id': x.config_id}) FILTER (c.template LIKE 'triton::%') AS triton
    FROM config_times AS x
    JOIN configs AS c ON c.id = x.config_id
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
    m.problem_id,
    p.op,
    p.dtype,
    p.b,
    p.m,
    p.n,
    p.k,
    p.layout,
    g.vendor.config_id AS vendor_config_id,
    v.template AS vendor_template,
    g.vendor.us AS vendor_us,
    g.triton.config_id AS triton_config_id,
    t.template AS triton_template,
    t.block_m,
    t.block_n,
    t.block_k,
    t.group_m,
    t.num_stages,
    t.num_warps,
    g.triton.us AS triton_us,
    g.vendor.us / g.triton.us AS speedup
FROM best AS g
JOIN measurements AS m ON m.id = g.case_id
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
JOIN problems AS p ON p.id = m.problem_id
JOIN configs AS v ON v.id = g.vendor.config_id
JOIN configs AS t ON t.id = g.triton.config_id;
