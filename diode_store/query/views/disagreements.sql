-- Configs that were timed several times where they should give one time and did not: the same hardware, environment,
-- problem, regime and config, and more between the lowest and the highest than noise explains. The most surprising first.
-- The scatter is the usual one, not one measured here: that would grow with what is looked for.
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
        -- Of equal times the first measurement, here too.
        max({'us': t.runtime_us, 'minus_id': -t.measurement_id}) AS highest
    FROM timings AS t
    JOIN believed(NULL) AS m ON m.id = t.measurement_id
    WHERE t.outcome = 'ok' AND NOT t.is_estimate AND m.measurements > 1
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
ORDER BY sigmas DESC, r.case_id, r.config_id;
