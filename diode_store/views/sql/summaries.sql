-- The summary of each case: one row for every case with trusted times. Views read the summaries that syncs keep.
WITH
-- include _times.sql
,
near AS (
    SELECT case_id, list_sort(list({'us': t.runtime_us, 'config_id': t.config_id, 'repeats': t.repeats})) AS configs_near
    FROM times AS t
    JOIN limits AS l USING (case_id)
    WHERE t.runtime_us <= greatest(l.tie_us, l.second_us)
    GROUP BY case_id
),
of_template AS MATERIALIZED (
    SELECT
        t.case_id,
        c.template,
        min({'us': t.runtime_us, 'config_id': t.config_id, 'repeats': t.repeats}) AS fastest,
        count(*) AS configs
    FROM times AS t
    JOIN configs AS c ON c.id = t.config_id
    GROUP BY ALL
),
-- The best of all kernels, of vendor kernels and of Triton kernels follow from the best of each template.
best AS (
    SELECT
        case_id,
        list_sort(list({
            'template': template,
            'config_id': fastest.config_id,
            'us': fastest.us,
            'repeats': fastest.repeats,
            'configs': configs
        })) AS templates,
        min(fastest) AS best,
        min(fastest) FILTER (template LIKE 'aten::%') AS vendor,
        min(fastest) FILTER (template LIKE 'triton::%') AS triton
    FROM of_template
    GROUP BY case_id
),
taken AS (
    SELECT case_no, count(*) AS measurements, min(measured_at) AS first_measured_at, max(measured_at) AS last_measured_at
    FROM numbered_measurements
    WHERE NOT is_replay AND flags IS NULL AND superseded_by IS NULL
    GROUP BY case_no
)
SELECT
    m.case_id AS case_no,
    m.hardware_id,
    m.environment_id,
    m.problem_id,
    m.regime,
    m.family,
    w.configs_near[1].config_id AS config_id,
    w.configs_near[1].us AS runtime_us,
    w.configs_near[1].repeats AS repeats,
    w.configs_near[2].config_id AS runner_up_config_id,
    w.configs_near[2].us AS runner_up_us,
    list_transform(
        list_filter(w.configs_near, lambda near: near.us <= l.tie_us), lambda near: near.config_id
    ) AS tie_config_ids,
    l.sigma,
    l.tie_us,
    l.second_us,
    l.configs,
    r.best.config_id AS best_config_id,
    r.best.us AS best_us,
    r.vendor.config_id AS vendor_config_id,
    r.vendor.us AS vendor_us,
    r.triton.config_id AS triton_config_id,
    r.triton.us AS triton_us,
    r.templates,
    t.measurements,
    t.first_measured_at,
    t.last_measured_at
FROM near AS w
JOIN limits AS l USING (case_id)
JOIN cases AS m USING (case_id)
JOIN taken AS t ON t.case_no = w.case_id
LEFT JOIN best AS r USING (case_id)
