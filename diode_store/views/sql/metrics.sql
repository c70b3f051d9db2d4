-- One row per value of a kernel beside its time, such as its registers or spills.
CREATE VIEW metrics AS
SELECT v.measurement_id, v.config_id, k.name, k.unit, v.value
FROM stored_metric_values AS v
JOIN metric_names AS k ON k.id = v.metric_id;
