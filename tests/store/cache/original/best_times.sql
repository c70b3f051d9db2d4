-- The best times of each problem: one row per (hardware, environment, problem, regime), with the best time of all
-- kernels, of vendor kernels and of Triton kernels.
CREATE VIEW best_times AS
WITH
-- include _times.sql
,
-- include _sides.sql
,
taken AS (
    SELECT
        hardware_id,
        environment_id,
        problem_id,
        regime,
        count(*) AS measurements,
        min(measured_at) AS first_measured_at,
        max(measured_at) AS last_measured_at
    FROM measurements
    WHERE NOT is_replay AND flags IS NULL AND superseded_by IS NULL
    GROUP BY ALL
)
SELECT
    -- include _case.sql
    lower(hex(p.key)) AS problem_key,
    lower(hex(e.key)) AS environment_key,
    m.family,
    r.best.config_id AS config_id,
    b.template,
    r.best.us AS best_us,
    l.second_us,
    l.tie_us,
    l.sigma,
    r.vendor.config_id AS vendor_config_id,
    r.vendor.us AS vendor_us,
    r.triton.config_id AS triton_config_id,
    r.triton.us AS triton_us,
    l.configs,
    t.measurements,
    t.first_measured_at,
    t.last_measured_at
FROM best AS r
JOIN limits AS l USING (case_id)
JOIN cases AS m USING (case_id)
JOIN taken AS t
    ON t.hardware_id = m.hardware_id AND t.environment_id = m.environment_id AND t.problem_id = m.problem_id
    AND t.regime IS NOT DISTINCT FROM m.regime
-- include _joins.sql
JOIN configs AS b ON b.id = r.best.config_id
ORDER BY r.case_id;
