-- Every config of each (hardware, environment, problem) with its place among them.
CREATE VIEW config_rank AS
WITH
-- include _times.sql
SELECT
    t.hardware_id,
    t.hardware::VARCHAR AS hardware,
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
    c.id AS config_id,
    c.template,
    c.block_m,
    c.block_n,
    c.block_k,
    c.group_m,
    c.num_stages,
    c.num_warps,
    c.allow_tf32,
    c.kwargs,
    c.template LIKE 'aten::%' AS is_vendor,
    t.runtime_us,
    t.repeats,
    row_number() OVER (
        PARTITION BY t.case_id, t.hardware_id, t.hardware ORDER BY t.runtime_us, t.config_id
    ) AS rank,
    l.configs,
    t.runtime_us / l.best_us AS slowdown,
    t.runtime_us <= l.tie_us AS is_tie
FROM times AS t
JOIN limits AS l USING (case_id, hardware_id, hardware)
JOIN cases AS m USING (case_id)
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
JOIN problems AS p ON p.id = m.problem_id
JOIN configs AS c ON c.id = t.config_id
ORDER BY t.case_id, rank;
