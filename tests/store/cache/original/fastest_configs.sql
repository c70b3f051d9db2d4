-- The best config of each (hardware, environment, problem, regime), and its tie set: the configs within noise of it.
CREATE VIEW fastest_configs AS
WITH
-- include _times.sql
,
near AS (
    SELECT
        case_id,
        hardware_id,
        hardware,
        any_value(l.configs) AS configs,
        any_value(l.sigma) AS sigma,
        any_value(l.tie_us) AS tie_us,
        list({'us': t.runtime_us, 'config_id': t.config_id, 'repeats': t.repeats}
            ORDER BY t.runtime_us, t.config_id) AS configs_near
    FROM times AS t
    JOIN limits AS l USING (case_id, hardware_id, hardware)
    WHERE t.runtime_us <= greatest(l.tie_us, l.second_us)
    GROUP BY ALL
)
SELECT
    w.hardware_id,
    w.hardware::VARCHAR AS hardware,
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
    w.configs_near[1].us AS runtime_us,
    w.configs_near[2].config_id AS runner_up_config_id,
    w.configs_near[2].us AS runner_up_us,
    list_transform(
        list_filter(w.configs_near, lambda near: near.us <= w.tie_us), lambda near: near.config_id
    ) AS tie_config_ids,
    w.sigma,
    w.configs_near[1].repeats AS repeats,
    w.configs
FROM near AS w
JOIN cases AS m USING (case_id)
-- include _joins.sql
JOIN configs AS c ON c.id = w.configs_near[1].config_id
ORDER BY w.case_id;
