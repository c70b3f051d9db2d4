-- From `cases` and `believed_times`: `times`, one row per (case, config), and `limits`, one row per case.
times AS MATERIALIZED (
    SELECT
        case_id, hardware_id, hardware, config_id, runtime_us, 1::BIGINT AS repeats, NULL::DOUBLE AS relative_variance
    FROM believed_times
    WHERE measurements = 1
    UNION ALL
    SELECT
        case_id,
        hardware_id,
        hardware,
        config_id,
        total / repeats AS runtime_us,
        repeats,
        CASE WHEN repeats = 2 THEN 2 * ((longest - shortest) / total) ** 2 END AS relative_variance
    FROM (
        SELECT
            case_id,
            hardware_id,
            hardware,
            config_id,
            count(*) AS repeats,
            sum(runtime_us) AS total,
            min(runtime_us) AS shortest,
            max(runtime_us) AS longest
        FROM believed_times
        WHERE measurements = 2
        GROUP BY ALL
    )
    UNION ALL
    SELECT
        case_id,
        hardware_id,
        hardware,
        config_id,
        median(runtime_us) AS runtime_us,
        count(*) AS repeats,
        var_samp(runtime_us) / avg(runtime_us) ** 2 AS relative_variance
    FROM believed_times
    WHERE measurements > 2
    GROUP BY ALL
),
-- One row per case: the best time, the number of configs, and the scatter of repeated configs.
bests AS (
    SELECT
        case_id,
        hardware_id,
        hardware,
        min(runtime_us, 2) AS best_two_us,
        count(*) AS configs,
        -- Repeats that agree to the last bit, perhaps by chance, show no scatter.
        nullif(
            sqrt(
                sum((repeats - 1) * relative_variance) FILTER (repeats > 1) / sum(repeats - 1) FILTER (repeats > 1)
            ),
            0
        ) AS measured_sigma
    FROM times
    GROUP BY ALL
),
limits AS (
    SELECT
        b.case_id,
        b.hardware_id,
        b.hardware,
        b.configs,
        b.measured_sigma,
        c.usual_sigmas,
        coalesce(b.measured_sigma, usual_sigma(b.best_two_us[1], c.usual_sigmas)) AS sigma,
        b.best_two_us[1] AS best_us,
        b.best_two_us[2] AS second_us,
        noise_limit(best_us, sigma) AS tie_us
    FROM bests AS b
    JOIN cases AS c USING (case_id, hardware_id, hardware)
)
