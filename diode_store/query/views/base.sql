-- The base of the named views, for DuckDB over the lake's tables: hardware, environments, problems, configs,
-- segment_measurements, marks and timings. docs/views.md says what each column of a view means; a test compares the
-- two, and others execute every view against rows worked out by hand.
--
-- Two kinds of measurement never count: deleted ones, which the tables leave out, and superseded ones, which the
-- views leave out. Trusted timings also exclude replays and flagged ones.
--
-- sigmas_of, noisiest, usual_sigma and noise_limit are made of the figures in diode_store/noise.py by noise_sql.py, and
-- regime_rank of the regimes in diode_store/records.py by regime_sql.py.

-- Whether a sweep timed nothing but the vendor's kernels, so that it does not know what is fastest.
CREATE MACRO is_by_vendor_alone(search_space) AS coalesce(search_space, '') LIKE 'VENDOR%';

CREATE MACRO asks_for_tf32(dtype, scalars) AS
    dtype = 'float32' AND contains(replace(scalars, ' ', ''), '["ALLOW_TF32",true]');

-- One byte a row instead of sixteen: a condition on the device's name must reach the bottom of every view, and so
-- the name is among the keys of their groups.
CREATE TYPE hardware_name AS ENUM (SELECT DISTINCT name FROM hardware ORDER BY name);

CREATE VIEW measurements AS
SELECT segment.*, marks.flags, marks.superseded_by
FROM segment_measurements AS segment
LEFT JOIN marks ON marks.id = segment.id;

-- 1 for what a problem's kernels took in the regime nearest to deployment, for who wants one answer a problem.
CREATE MACRO regime_place(hardware_id, environment_id, problem_id, regime) AS
    row_number() OVER (PARTITION BY hardware_id, environment_id, problem_id ORDER BY regime_rank(regime), regime);

-- A case is a (hardware, environment, problem, regime) with trusted measurements; cases are numbered in this
-- order. Times of different regimes never meet in one case; that nobody knows the regime counts as a regime. Grouping
-- by one number takes a third of the time that grouping by four does. Where measurements of a case were timed by
-- several methods, the noisiest counts.
CREATE MACRO cases_of(policy) AS TABLE
SELECT
    (row_number() OVER (ORDER BY m.hardware_id, m.environment_id, m.problem_id, m.regime))::INTEGER AS case_id,
    m.hardware_id,
    h.name::hardware_name AS hardware,
    m.environment_id,
    m.problem_id,
    m.regime,
    min(m.family) AS family,
    count(*) AS measurements,
    noisiest(sigmas_of(m.statistic, m.flush_l2, m.launch_hidden, m.regime)) AS usual_sigmas
FROM measurements AS m
JOIN hardware AS h ON h.id = m.hardware_id
WHERE NOT m.is_replay AND m.flags IS NULL AND m.superseded_by IS NULL AND (policy IS NULL OR m.choice_policy = policy)
GROUP BY m.hardware_id, h.name, m.environment_id, m.problem_id, m.regime;

-- The measurements of these cases.
CREATE MACRO believed(policy) AS TABLE
SELECT m.id, c.case_id, c.hardware_id, c.hardware, c.measurements
FROM measurements AS m
JOIN cases_of(policy) AS c
    ON c.hardware_id = m.hardware_id AND c.environment_id = m.environment_id AND c.problem_id = m.problem_id
    AND c.regime IS NOT DISTINCT FROM m.regime
WHERE NOT m.is_replay AND m.flags IS NULL AND m.superseded_by IS NULL AND (policy IS NULL OR m.choice_policy = policy);
