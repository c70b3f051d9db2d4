-- The cost of the hook's picks: one row per (hardware, problem, model, policy, decided by, observed). A row compares the
-- latest decision that picked a kernel with the best known kernel of the same hardware, problem and regime. The pick's
-- time and the regret are NULL if the pick was never measured. All measured columns are NULL if the problem never was.
CREATE VIEW regret AS
WITH
-- A pick that failed to compile was never deployed.
last_picks AS (
    SELECT max({'decided_at': decided_at, 'id': id}).id AS id, count(*) AS decisions
    FROM decisions
    WHERE config_id IS NOT NULL AND failure IS NULL
    GROUP BY hardware_id, problem_id, model_sha256, policy, decided_by, observed
),
picks AS MATERIALIZED (
    SELECT d.*, json_extract(d.kept, '$[*][0]')::BIGINT[] AS kept_ids, l.decisions
    FROM last_picks AS l
    JOIN decisions AS d USING (id)
),
-- The same as in _times.sql, for problems with a pick only.
cases AS MATERIALIZED (
    FROM cases_of(NULL) SEMI JOIN picks USING (hardware_id, problem_id)
),
believed_times AS MATERIALIZED (
    SELECT m.case_id, m.hardware_id, m.hardware, m.measurements, t.config_id::INTEGER AS config_id, t.runtime_us
    FROM stored_timings AS t
    JOIN (FROM believed(NULL) SEMI JOIN cases USING (case_id)) AS m
        ON m.id = t.measurement_id AND m.case_id = t.case_no
    -- Compared with vendor kernels alone, any vendor pick would lose nothing.
    ANTI JOIN (FROM measurements WHERE is_by_vendor_alone(search_space)) AS v ON v.id = t.measurement_id
    WHERE t.outcome = 'ok' AND NOT t.is_estimate
        AND is_plausible(t.runtime_us, t.p10_us, t.p90_us, m.least_us)
),
-- include _medians.sql
,
-- One case per problem. Preferred in this order: the pick was measured, the regime is nearest to deployment, the
-- environment is the decision's own, and the case has the most configs.
found AS MATERIALIZED (
    SELECT d.id, m.case_id
    FROM picks AS d
    JOIN cases AS m ON m.hardware_id = d.hardware_id AND m.problem_id = d.problem_id
    JOIN limits AS l USING (case_id)
    LEFT JOIN times AS t ON t.case_id = m.case_id AND t.config_id = d.config_id
    QUALIFY row_number() OVER (
        PARTITION BY d.id
        ORDER BY
            t.runtime_us IS NULL,
            regime_rank(m.regime),
            m.regime,
            m.environment_id <> d.environment_id,
            l.configs DESC,
            m.environment_id DESC
    ) = 1
),
measured AS (
    SELECT
        f.id,
        f.case_id,
        min({'us': t.runtime_us, 'config_id': t.config_id}) AS best,
        min(t.runtime_us) FILTER (t.config_id = d.config_id) AS picked_us,
        min(t.runtime_us) FILTER (list_contains(d.kept_ids, t.config_id)) AS kept_us,
        min(t.runtime_us) FILTER (c.template LIKE 'aten::%') AS vendor_us
    FROM found AS f
    JOIN picks AS d USING (id)
    JOIN times AS t USING (case_id)
    JOIN configs AS c ON c.id = t.config_id
    GROUP BY f.id, f.case_id
)
SELECT
    d.hardware_id,
    h.name AS hardware,
    h.arch,
    h.multiprocessors,
    m.environment_id,
    e.torch,
    e.triton,
    m.regime,
    -- include _problem.sql
    -- include _config.sql
    c.template LIKE 'aten::%' AS is_vendor,
    d.predicted_us,
    r.picked_us,
    r.picked_us / r.best.us AS regret,
    r.picked_us <= l.tie_us AS is_tie,
    r.best.config_id AS best_config_id,
    b.template AS best_template,
    r.best.us AS best_us,
    len(d.kept_ids) AS kept,
    r.kept_us,
    d.predicted_vendor_us,
    r.vendor_us,
    d.p_within_2pct,
    d.candidates,
    l.configs,
    d.decided_by,
    d.observed,
    d.mode,
    d.policy,
    d.model_sha256,
    d.decided_at,
    d.decisions
FROM picks AS d
JOIN hardware AS h ON h.id = d.hardware_id
JOIN problems AS p ON p.id = d.problem_id
JOIN configs AS c ON c.id = d.config_id
LEFT JOIN measured AS r ON r.id = d.id
LEFT JOIN cases AS m ON m.case_id = r.case_id
LEFT JOIN limits AS l ON l.case_id = r.case_id
LEFT JOIN environments AS e ON e.id = m.environment_id
LEFT JOIN configs AS b ON b.id = r.best.config_id
ORDER BY regret DESC NULLS LAST, d.id;
