    -- The row's case m with its device h and environment e; r is the view's own row.
    r.hardware_id,
    r.hardware::VARCHAR AS hardware,
    h.arch,
    h.multiprocessors,
    e.id AS environment_id,
    e.torch,
    e.triton,
    m.regime,
    -- include _problem.sql
