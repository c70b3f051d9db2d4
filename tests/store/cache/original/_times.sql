-- Shared by the views that compare kernels; view_files.py inserts it at "include".
-- `times` has one row per (case, config): the median over its measurements, and their spread. Most cases were
-- measured once or twice, so a median costs no more than a sum.
cases AS MATERIALIZED (
    FROM cases_of(NULL)
),
believed_times AS MATERIALIZED (
    SELECT m.case_id, m.hardware_id, m.hardware, m.measurements, t.config_id::INTEGER AS config_id, t.runtime_us
    FROM timings AS t
    JOIN believed(NULL) AS m ON m.id = t.measurement_id
    WHERE t.outcome = 'ok' AND NOT t.is_estimate
        AND is_plausible(t.runtime_us, t.p10_us, t.p90_us, m.least_us)
),
-- include _medians.sql
