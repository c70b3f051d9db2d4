-- The best config of each template for each (hardware, environment, problem, regime).
CREATE VIEW fastest_by_template AS
WITH
-- include _times.sql
,
best AS (
    SELECT
        t.case_id,
        t.hardware_id,
        t.hardware,
        c.template,
        min({'us': t.runtime_us, 'config_id': t.config_id, 'repeats': t.repeats}) AS fastest,
        count(*) AS configs
    FROM times AS t
    JOIN configs AS c ON c.id = t.config_id
    GROUP BY ALL
)
SELECT
    -- include _case.sql
    -- include _config.sql
    c.kwargs,
    c.template LIKE 'aten::%' AS is_vendor,
    r.fastest.us AS runtime_us,
    r.fastest.repeats AS repeats,
    r.configs,
    row_number() OVER (
        PARTITION BY r.case_id, r.hardware_id, r.hardware ORDER BY r.fastest.us, r.fastest.config_id
    ) AS rank,
    r.fastest.us / l.best_us AS slowdown,
    r.fastest.us <= l.tie_us AS is_tie
FROM best AS r
JOIN limits AS l USING (case_id, hardware_id, hardware)
JOIN cases AS m USING (case_id)
-- include _joins.sql
JOIN configs AS c ON c.id = r.fastest.config_id
ORDER BY r.case_id, rank;
