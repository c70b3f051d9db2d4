-- One row per timing with all its columns, including failures and implausible times.
CREATE VIEW observations AS
SELECT
    lower(hex(m.uid)) AS measurement_uid,
    m.id AS measurement_id,
    m.hardware_id,
    h.name AS hardware,
    -- include _hardware.sql
    m.environment_id,
    e.torch,
    e.triton,
    e.compute,
    e.driver,
    e.python,
    e.os,
    -- include _problem.sql
    p.inputs,
    p.scalars,
    -- include _config.sql
    c.use_fast_accum,
    c.acc_type,
    c.kwargs,
    c.template LIKE 'aten::%' AS is_vendor,
    t.runtime_us,
    t.outcome,
    t.is_estimate,
    t.repeats,
    t.p10_us,
    t.p90_us,
    implausible_because(t.runtime_us, t.p10_us, t.p90_us, b.certain_us) AS implausible,
    m.source,
    m.measured_at,
    m.wrong_measured_at,
    m.ingested_at,
    m.is_replay,
    m.search_space,
    m.sample_seed,
    m.choice_policy,
    m.statistic,
    m.flush_l2,
    m.launch_hidden,
    m.regime,
    m.sm_clock_mhz,
    m.memory_clock_mhz,
    m.temperature_c,
    m.throttle_reasons,
    m.foreign_processes,
    m.flags,
    m.family,
    m.dataset,
    m.licence,
    m.sweep_id,
    m.host,
    m.device_uuid,
    m.collector_version
FROM stored_timings AS t
JOIN numbered_measurements AS m ON m.id = t.measurement_id AND m.case_no = t.case_no
-- include _joins.sql
JOIN known_cases AS b ON b.case_no = m.case_no
JOIN configs AS c ON c.id = t.config_id
WHERE m.superseded_by IS NULL;
