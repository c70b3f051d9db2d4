-- The best kernel of each (hardware, environment, problem, regime) as a share of the device's peaks.
CREATE VIEW rooflines AS
SELECT
    m.hardware_id,
    h.name AS hardware,
    h.arch,
    m.environment_id,
    e.torch,
    m.regime,
    -- include _problem.sql
    c.id AS config_id,
    c.template,
    m.best_us,
    s.flops / m.best_us / 1e6 AS tflops,
    s.peak_tflops,
    s.bytes_moved / m.best_us / 1e3 AS gb_per_s,
    s.peak_gb_per_s,
    CASE
        WHEN s.roofline_us IS NULL THEN NULL
        WHEN s.flops / s.peak_tflops / 1e3 > s.bytes_moved / s.peak_gb_per_s THEN 'compute'
        ELSE 'memory'
    END AS limited_by,
    s.roofline_us,
    s.roofline_us / m.best_us AS roofline_share
FROM summaries AS m
JOIN known_cases AS s ON s.case_no = m.case_no
-- include _joins.sql
JOIN configs AS c ON c.id = m.best_config_id
ORDER BY m.hardware_id, m.environment_id, m.problem_id, m.regime;
