-- One row per timing with everything that the warehouse knows about it: the rows that `diode publish` writes, which
-- leaves out measurement_id. The key of a device, environment, problem or config is the same in every warehouse.
CREATE VIEW published AS
SELECT
    h.name AS hardware,
    strftime(coalesce(m.measured_at, m.ingested_at), '%Y-%m') AS month,
    m.id AS measurement_id,
    m.uid_hex AS measurement_uid,
    h.key_hex AS hardware_key,
    -- include _hardware.sql
    h.extra AS hardware_extra,
    e.key_hex AS environment_key,
    e.torch,
    e.triton,
    e.compute,
    e.driver,
    e.python,
    e.os,
    e.template_hashes,
    e.extra AS environment_extra,
    p.key_hex AS problem_key,
    p.op,
    p.dtype,
    p.b,
    p.m,
    p.n,
    p.k,
    p.layout,
    p.dimensions,
    p.inputs,
    p.scalars,
    p.extra AS problem_extra,
    c.key_hex AS config_key,
    c.template,
    c.block_m,
    c.block_n,
    c.block_k,
    c.group_m,
    c.num_stages,
    c.num_warps,
    c.allow_tf32,
    c.use_fast_accum,
    c.acc_type,
    c.kwargs,
    c.extra AS config_extra,
    t.runtime_us,
    t.outcome,
    t.is_estimate,
    t.repeats,
    t.p10_us,
    t.p90_us,
    t.extra AS timing_extra,
    (
        SELECT to_json(map_from_entries(list((k.name, {'value': v.value, 'unit': k.unit}) ORDER BY k.name)))::VARCHAR
        FROM stored_metric_values AS v
        JOIN metric_names AS k ON k.id = v.metric_id
        WHERE v.measurement_id = t.measurement_id AND v.config_id = t.config_id
    ) AS metrics,
    m.source,
    m.measured_at,
    m.wrong_measured_at,
    m.ingested_at,
    m.host,
    m.device_uuid,
    m.sweep_id,
    m.collector_version,
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
    m.family,
    m.dataset,
    m.licence,
    m.extra AS measurement_extra,
    m.flags,
    lower(hex(m.superseded_by)) AS superseded_by
FROM stored_timings AS t
-- Keys are written once for each measurement, device, environment, problem and config, not for each timing.
JOIN (SELECT *, lower(hex(uid)) AS uid_hex FROM numbered_measurements) AS m
    ON m.id = t.measurement_id AND m.case_no = t.case_no
JOIN (SELECT *, lower(hex(key)) AS key_hex FROM hardware) AS h ON h.id = m.hardware_id
JOIN (SELECT *, lower(hex(key)) AS key_hex FROM environments) AS e ON e.id = m.environment_id
JOIN (SELECT *, lower(hex(key)) AS key_hex FROM problems) AS p ON p.id = m.problem_id
JOIN (SELECT *, lower(hex(key)) AS key_hex FROM configs) AS c ON c.id = t.config_id;
