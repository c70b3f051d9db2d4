-- The best config of each family of kernels (template) for each (hardware, environment, problem).
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
    w.hardware_id,
    w.hardware::VARCHAR AS hardware,
    h.arch,
    h.multiprocessors,
    m.environment_id,
    e.torch,
    e.triton,
    m.problem_id,
    p.op,
    p.dtype,
    p.b,
    p.m,
    p.n,
    p.k,
    p.layout,
    asks_for_tf32(p.dtype, p.scalars) AS tf32,
    w.template,
    w.template LIKE 'aten::%' AS is_vendor,
    c.id AS config_id,
    c.block_m,
    c.block_n,
    c.block_k,
    c.group_m,
    c.num_stages,
    c.num_warps,
    c.allow_tf32,
    c.kwargs,
    w.fastest.us AS runtime_us,
    w.fastest.repeats AS repeats,
    w.configs,
    row_number() OVER (
        PARTITION BY w.case_id, w.hardware_id, w.hardware ORDER BY w.fastest.us, w.fastest.config_id
    ) AS rank,
    w.fastest.us / l.best_us AS slowdown,
    w.fastest.us <= l.tie_us AS is_tie
FROM best AS w
JOIN limits AS l USING (case_id, hardware_id, hardware)
JOIN cases AS m USING (case_id)
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
JOIN problems AS p ON p.id = m.problem_id
JOIN configs AS c ON c.id = w.fastest.config_id
ORDER BY w.case_id, rank;
