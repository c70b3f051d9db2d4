-- From `times`: `best`, one row per case, with the best of all kernels, of vendor kernels and of Triton kernels.
best AS (
    SELECT
        t.case_id,
        t.hardware_id,
        t.hardware,
        min({'us': t.runtime_us, 'config_id': t.config_id}) AS best,
        min({'us': t.runtime_us, 'config_id': t.config_id}) FILTER (c.template LIKE 'aten::%') AS vendor,
        min({'us': t.runtime_us, 'config_id': t.config_id}) FILTER (c.template LIKE 'triton::%') AS triton
    FROM times AS t
    JOIN configs AS c ON c.id = t.config_id
    GROUP BY ALL
)
