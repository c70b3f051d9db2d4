-- The base of the named views, for DuckDB over these tables: hardware, environments, problems, configs, marks,
-- metric_names, stored_measurements, stored_timings, stored_metric_values and known_cases. In the cache they hold
-- everything; while a sync works out summaries, they hold the cases that it touched. columns.toml describes each view. One test compares it with the views; others run
-- every view on rows worked out by hand.
--
-- Two kinds of measurement never count. The tables leave out deleted measurements, and the views superseded ones.
-- Trusted timings also exclude replays and flagged measurements.
--
-- noise_sql.py makes sigmas_of, noisiest, usual_sigma and noise_limit from diode_store/timing/noise.py. regime_sql.py
-- makes regime_rank from diode_store/records.py. roofline_sql.py makes is_plausible, implausible_because, clock_is_off,
-- and the table hardware with the peaks of each device. problem_sql.py makes flops_of and other macros from diode_store/ops.

-- True if a sweep timed vendor kernels alone, so that it cannot know the fastest kernel.
CREATE MACRO is_by_vendor_alone(search_space) AS coalesce(search_space, '') LIKE 'VENDOR%';

CREATE MACRO asks_for_tf32(dtype, scalars) AS
    dtype = 'float32' AND contains(replace(scalars, ' ', ''), '["ALLOW_TF32",true]');

-- One byte per row instead of sixteen: a condition on the device's name must reach the bottom of every view, so the
-- name is among their grouping keys.
CREATE TYPE hardware_name AS ENUM (SELECT DISTINCT name FROM hardware ORDER BY name);

-- A case is a (hardware, environment, problem, regime). Its number is also in the tables of facts: grouping by one
-- number is much faster than grouping by four, and the cache sorts by it. A clock that was far off gives no time of
-- measurement; another column keeps its reading.
CREATE VIEW numbered_measurements AS
SELECT
    stored.* REPLACE (
        CASE WHEN NOT clock_is_off(stored.measured_at, stored.ingested_at) THEN stored.measured_at END AS measured_at
    ),
    CASE WHEN clock_is_off(stored.measured_at, stored.ingested_at) THEN stored.measured_at END AS wrong_measured_at,
    marks.flags,
    marks.superseded_by
FROM stored_measurements AS stored
LEFT JOIN marks ON marks.id = stored.id;

CREATE VIEW measurements AS
SELECT * EXCLUDE (case_no, timing_count, failure_count, estimate_count) FROM numbered_measurements;

CREATE VIEW timings AS
SELECT * EXCLUDE (case_no) FROM stored_timings;

CREATE VIEW metric_values AS
SELECT * EXCLUDE (case_no) FROM stored_metric_values;

-- The metrics of a timing as JSON, by name; NULL without any.
CREATE MACRO metrics_json(measurement, config) AS (
    SELECT to_json(map_from_entries(list((k.name, {'value': v.value, 'unit': k.unit}) ORDER BY k.name)))::VARCHAR
    FROM stored_metric_values AS v
    JOIN metric_names AS k ON k.id = v.metric_id
    WHERE v.measurement_id = measurement AND v.config_id = config
);

-- The roofline of every problem on every device, and its shortest believable time. The latter does not count a matrix
-- that repeats itself by a stride of 0: caches may hold all of it. The figures are those of diode_store/ops/work.py. For
-- an unknown op all but the shortest time are NULL. The table known_cases has these columns by case.
CREATE VIEW bounds AS
SELECT
    hardware_id,
    problem_id,
    flops,
    bytes_moved,
    peak_tflops,
    peak_gb_per_s,
    greatest(compute_us, bytes_moved / peak_gb_per_s / 1e3) + launch_us() AS roofline_us,
    greatest(compute_us, certain_bytes / peak_gb_per_s / 1e3) + launch_us() AS certain_us,
    least_us_of(greatest(compute_us, certain_bytes / peak_gb_per_s / 1e3) + launch_us()) AS least_us
FROM (
    SELECT
        *,
        written + read AS bytes_moved,
        written + CASE WHEN repeats_inputs(op, inputs) THEN 0 ELSE read END AS certain_bytes,
        flops / peak_tflops / 1e6 AS compute_us
    FROM (
        SELECT
            h.id AS hardware_id,
            p.id AS problem_id,
            p.op,
            p.inputs,
            h.peak_gb_per_s,
            flops_of(p.op, p.b, p.m, p.n, p.k, p.dimensions) AS flops,
            bytes_written_of(p.op, p.dtype, p.b, p.m, p.n, p.k, p.dimensions) AS written,
            bytes_read_of(p.op, p.dtype, p.b, p.m, p.n, p.k, p.dimensions) AS read,
            CASE
                WHEN flops IS NULL THEN NULL
                WHEN is_int8(p.dtype) THEN h.peak_int8_tflops
                WHEN itemsize_of(p.dtype) = 1 THEN h.peak_fp8_tflops
                WHEN itemsize_of(p.dtype) = 2 THEN h.peak_half_tflops
                WHEN asks_for_tf32(p.dtype, p.scalars) THEN h.peak_tf32_tflops
                ELSE h.peak_fp32_tflops
            END AS peak_tflops
        FROM hardware AS h, problems AS p
    )
);

-- 1 for a problem's regime nearest to deployment, to get one answer per problem.
CREATE MACRO regime_place(hardware_id, environment_id, problem_id, regime) AS
    row_number() OVER (PARTITION BY hardware_id, environment_id, problem_id ORDER BY regime_rank(regime), regime);

-- The cases with trusted measurements. Times of different regimes never share a case; an unknown regime counts as a
-- regime. If a case was timed by several methods, the noisiest method counts.
CREATE MACRO cases_of(policy) AS TABLE
SELECT
    m.case_no AS case_id,
    m.hardware_id,
    h.name::hardware_name AS hardware,
    m.environment_id,
    m.problem_id,
    m.regime,
    min(m.family) AS family,
    count(*) AS measurements,
    noisiest(sigmas_of(m.statistic, m.flush_l2, m.launch_hidden, m.regime)) AS usual_sigmas
FROM numbered_measurements AS m
JOIN hardware AS h ON h.id = m.hardware_id
WHERE NOT m.is_replay AND m.flags IS NULL AND m.superseded_by IS NULL AND (policy IS NULL OR m.choice_policy = policy)
GROUP BY m.case_no, m.hardware_id, h.name, m.environment_id, m.problem_id, m.regime;

-- The measurements of these cases, each with its shortest believable time.
CREATE MACRO believed(policy) AS TABLE
SELECT m.id, c.case_id, c.hardware_id, c.hardware, c.measurements, b.least_us
FROM numbered_measurements AS m
JOIN cases_of(policy) AS c ON c.case_id = m.case_no
JOIN known_cases AS b ON b.case_no = m.case_no AND b.least_us IS NOT NULL
WHERE NOT m.is_replay AND m.flags IS NULL AND m.superseded_by IS NULL AND (policy IS NULL OR m.choice_policy = policy);
