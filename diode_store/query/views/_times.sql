-- Shared by the views that compare kernels; view_files.py puts it where they say "include".
-- `times` has one row a (case, config): its median over measurements, and how much they differ. Most cases were
-- measured once or twice, and there a median costs no more than a sum.
cases AS MATERIALIZED (
    FROM cases_of(NULL)
),
believed_times AS MATERIALIZED (
    SELECT m.case_id, m.hardware_id, m.hardware, m.measurements, t.config_id::INTEGER AS config_id, t.runtime_us
    FROM timings AS t
    JOIN believed(NULL) AS m ON m.id = t.measurement_id
    WHERE t.outcome = 'ok' AND NOT t.is_estimate
),
-- include _medians.sql
