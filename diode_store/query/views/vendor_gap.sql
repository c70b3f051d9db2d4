-- The best Triton kernel against the vendor's best, where both were timed; a speedup over 1 means Triton wins.
CREATE VIEW vendor_gap AS
WITH
-- include _times.sql
,
best AS (
    SELECT
        t.case_id,
        t.hardware_id,
        t.hardware,
        min({'us': t.runtime_us, 'config_id': t.config_id}) FILTER (c.template LIKE 'aten::%') AS vendor,
        min({'us': t.runtime_us, 'config_id': t.config_id}) FILTER (c.template LIKE 'triton::%') AS triton
    FROM times AS t
    JOIN configs AS c ON c.id = t.config_id
    GROUP BY ALL
)
SELECT
    g.hardware_id,
    g.hardware::VARCHAR AS hardware,
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
    g.vendor.config_id AS vendor_config_id,
    v.template AS vendor_template,
    g.vendor.us AS vendor_us,
    g.triton.config_id AS triton_config_id,
    t.template AS triton_template,
    t.block_m,
    t.block_n,
    t.block_k,
    t.group_m,
    t.num_stages,
    t.num_warps,
    g.triton.us AS triton_us,
    g.vendor.us / g.triton.us AS speedup
FROM best AS g
JOIN cases AS m USING (case_id)
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
JOIN problems AS p ON p.id = m.problem_id
JOIN configs AS v ON v.id = g.vendor.config_id
JOIN configs AS t ON t.id = g.triton.config_id
ORDER BY g.case_id;
