-- The best config of each (hardware, environment, problem, regime), and its tie set: the configs within noise of it.
CREATE VIEW fastest_configs AS
SELECT
    m.hardware_id,
    h.name AS hardware,
    -- include _hardware.sql
    m.environment_id,
    e.torch,
    e.triton,
    e.compute,
    e.driver,
    m.regime,
    -- include _problem.sql
    p.inputs,
    p.scalars,
    -- include _config.sql
    c.use_fast_accum,
    c.acc_type,
    c.kwargs,
    c.template LIKE 'aten::%' AS is_vendor,
    m.runtime_us,
    m.runner_up_config_id,
    m.runner_up_us,
    m.tie_config_ids,
    m.sigma,
    m.repeats,
    m.configs
FROM summaries AS m
-- include _joins.sql
JOIN configs AS c ON c.id = m.config_id
ORDER BY m.hardware_id, m.environment_id, m.problem_id, m.regime;
