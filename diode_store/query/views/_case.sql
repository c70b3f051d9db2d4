    -- What says which case m a row is about; r is what the view found, h its device, e its environment.
    r.hardware_id,
    r.hardware::VARCHAR AS hardware,
    h.arch,
    h.multiprocessors,
    e.id AS environment_id,
    e.torch,
    e.triton,
    m.regime,
    -- include _problem.sql
