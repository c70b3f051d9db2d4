-- The best times of each problem: one row per (hardware, environment, problem, regime), with the best time of all
-- kernels, of vendor kernels and of Triton kernels.
CREATE VIEW best_times AS
SELECT
    m.hardware_id,
    h.name AS hardware,
    h.arch,
    h.multiprocessors,
    e.id AS environment_id,
    e.torch,
    e.triton,
    m.regime,
    -- include _problem.sql
    lower(hex(p.key)) AS problem_key,
    lower(hex(e.key)) AS environment_key,
    m.family,
    m.best_config_id AS config_id,
    b.template,
    m.best_us,
    m.second_us,
    m.tie_us,
    m.sigma,
    m.vendor_config_id,
    m.vendor_us,
    m.triton_config_id,
    m.triton_us,
    m.configs,
    m.measurements,
    m.first_measured_at,
    m.last_measured_at
FROM summaries AS m
-- include _joins.sql
JOIN configs AS b ON b.id = m.best_config_id
ORDER BY m.hardware_id, m.environment_id, m.problem_id, m.regime;
