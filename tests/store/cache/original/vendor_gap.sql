-- The best Triton kernel against the best vendor kernel, if both were timed; a speedup over 1 means Triton wins.
CREATE VIEW vendor_gap AS
WITH
-- include _times.sql
,
-- include _sides.sql
SELECT
    -- include _case.sql
    r.vendor.config_id AS vendor_config_id,
    v.template AS vendor_template,
    r.vendor.us AS vendor_us,
    r.triton.config_id AS triton_config_id,
    t.template AS triton_template,
    t.block_m,
    t.block_n,
    t.block_k,
    t.group_m,
    t.num_stages,
    t.num_warps,
    r.triton.us AS triton_us,
    r.vendor.us / r.triton.us AS speedup
FROM best AS r
JOIN cases AS m USING (case_id)
-- include _joins.sql
JOIN configs AS v ON v.id = r.vendor.config_id
JOIN configs AS t ON t.id = r.triton.config_id
ORDER BY r.case_id;
