-- Repeated timings that disagree: the same hardware, environment, problem, regime and config, with a larger spread
-- than noise explains. The most surprising come first. The view uses the usual scatter, because scatter measured here
-- would grow with the disagreement.
CREATE VIEW disagreements AS
WITH spread AS (
    SELECT
        m.case_id,
        m.hardware_id,
        m.hardware,
        t.config_id,
        count(*) AS measurements,
        median(t.runtime_us) AS runtime_us,
        min({'us': t.runtime_us, 'measurement_id': t.measurement_id}) AS lowest,
        -- Of equal times take the first measurement here too.
        max({'us': t.runtime_us, 'minus_id': -t.measurement_id}) AS highest
    FROM stored_timings AS t
    JOIN believed(NULL) AS m ON m.id = t.measurement_id AND m.case_id = t.case_no
    WHERE t.outcome = 'ok' AND NOT t.is_estimate
        AND is_plausible(t.runtime_us, t.p10_us, t.p90_us, m.least_us) AND m.measurements > 1
    GROUP BY ALL
)
SELECT
    -- include _case.sql
    -- include _config.sql
    c.kwargs,
    c.template LIKE 'aten::%' AS is_vendor,
    r.measurements,
    r.runtime_us,
    r.lowest.us AS lowest_us,
    r.highest.us AS highest_us,
    r.lowest.measurement_id AS lowest_measurement_id,
    -r.highest.minus_id AS highest_measurement_id,
    r.highest.us / r.lowest.us AS ratio,
    usual_sigma(r.lowest.us, m.usual_sigmas) AS sigma,
    (ratio - 1) / sigma AS sigmas
FROM spread AS r
JOIN cases_of(NULL) AS m USING (case_id)
-- include _joins.sql
JOIN configs AS c ON c.id = r.config_id
WHERE r.highest.us > noise_limit(r.lowest.us, sigma)
ORDER BY sigmas DESC, m.hardware_id, m.environment_id, m.problem_id, m.regime, r.config_id;
