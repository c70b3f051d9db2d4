-- The best kernel of each (hardware, environment, problem, regime) as a share of the device's peaks.
CREATE VIEW rooflines AS
SELECT
    t.hardware_id,
    t.hardware,
    t.arch,
    t.environment_id,
    t.torch,
    t.regime,
    t.problem_id,
    t.op,
    t.dtype,
    t.b,
    t.m,
    t.n,
    t.k,
    t.layout,
    t.dimensions,
    t.tf32,
    t.config_id,
    t.template,
    t.best_us,
    b.flops / t.best_us / 1e6 AS tflops,
    b.peak_tflops,
    b.bytes_moved / t.best_us / 1e3 AS gb_per_s,
    b.peak_gb_per_s,
    CASE
        WHEN b.roofline_us IS NULL THEN NULL
        WHEN b.flops / b.peak_tflops / 1e3 > b.bytes_moved / b.peak_gb_per_s THEN 'compute'
        ELSE 'memory'
    END AS limited_by,
    b.roofline_us,
    b.roofline_us / t.best_us AS roofline_share
FROM best_times AS t
JOIN bounds AS b ON b.hardware_id = t.hardware_id AND b.problem_id = t.problem_id;
