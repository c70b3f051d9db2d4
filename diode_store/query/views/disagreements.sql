-- Configs that were timed several times where they should give one time and did not: the same hardware, environment,
-- problem and config, and more between the lowest and the highest than noise explains. The most surprising first.
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
    s.hardware_id,
    s.hardware::VARCHAR AS hardware,
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
    s.measurements,
    s.runtime_us,
    s.lowest.us AS lowest_us,
    s.highest.us AS highest_us,
    s.lowest.measurement_id AS lowest_measurement_id,
    -s.highest.minus_id AS highest_measurement_id,
    s.highest.us / s.lowest.us AS ratio,
    usual_sigma(s.lowest.us, m.usual_sigmas) AS sigma,
    (ratio - 1) / sigma AS sigmas
FROM spread AS s
JOIN cases_of(NULL) AS m USING (case_id)
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
JOIN problems AS p ON p.id = m.problem_id
JOIN configs AS c ON c.id = s.config_id
WHERE s.highest.us > noise_limit(s.lowest.us, sigma)
ORDER BY sigmas DESC, s.case_id, s.config_id;
