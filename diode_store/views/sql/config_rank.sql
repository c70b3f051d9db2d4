-- Every config of each (hardware, environment, problem, regime) with its rank.
CREATE VIEW config_rank AS
WITH
-- include _times.sql
SELECT
    -- include _case.sql
    -- include _config.sql
    c.kwargs,
    c.template LIKE 'aten::%' AS is_vendor,
    r.runtime_us,
    r.repeats,
    row_number() OVER (
        PARTITION BY r.case_id, r.hardware_id, r.hardware ORDER BY r.runtime_us, r.config_id
    ) AS rank,
    l.configs,
    r.runtime_us / l.best_us AS slowdown,
    r.runtime_us <= l.tie_us AS is_tie
FROM times AS r
JOIN limits AS l USING (case_id, hardware_id, hardware)
JOIN cases AS m USING (case_id)
-- include _joins.sql
JOIN configs AS c ON c.id = r.config_id
ORDER BY m.hardware_id, m.environment_id, m.problem_id, m.regime, rank;
