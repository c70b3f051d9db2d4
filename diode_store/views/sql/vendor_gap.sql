-- The best Triton kernel against the best vendor kernel, if both were timed; a speedup over 1 means Triton wins.
CREATE VIEW vendor_gap AS
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
    m.vendor_config_id,
    v.template AS vendor_template,
    m.vendor_us,
    m.triton_config_id,
    t.template AS triton_template,
    t.block_m,
    t.block_n,
    t.block_k,
    t.group_m,
    t.num_stages,
    t.num_warps,
    m.triton_us,
    m.vendor_us / m.triton_us AS speedup
FROM summaries AS m
-- include _joins.sql
JOIN configs AS v ON v.id = m.vendor_config_id
JOIN configs AS t ON t.id = m.triton_config_id
ORDER BY m.hardware_id, m.environment_id, m.problem_id, m.regime;
