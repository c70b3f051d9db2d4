-- A model's training rows: one row per (hardware, environment, problem, regime, config), in a stable order.
CREATE VIEW training_examples AS
SELECT
    x.hardware_id,
    h.name AS hardware,
    -- include _hardware.sql
    x.environment_id,
    e.torch,
    x.regime,
    x.family,
    -- include _problem.sql
    -- include _config.sql
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
ORDER BY x.hardware_id, x.environment_id, x.problem_id, x.regime, x.config_id;
