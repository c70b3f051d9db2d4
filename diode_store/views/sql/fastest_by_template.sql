-- The best config of each template for each (hardware, environment, problem, regime).
CREATE VIEW fastest_by_template AS
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
    -- include _config.sql
    c.kwargs,
    c.template LIKE 'aten::%' AS is_vendor,
    m.best.us AS runtime_us,
    m.best.repeats AS repeats,
    m.best.configs AS configs,
    row_number() OVER (
        PARTITION BY m.case_no, m.hardware_id, h.name ORDER BY m.best.us, m.best.config_id
    ) AS rank,
    m.best.us / m.runtime_us AS slowdown,
    m.best.us <= m.tie_us AS is_tie
FROM (SELECT * EXCLUDE (templates), unnest(templates) AS best FROM summaries) AS m
-- include _joins.sql
JOIN configs AS c ON c.id = m.best.config_id
ORDER BY m.hardware_id, m.environment_id, m.problem_id, m.regime, rank;
