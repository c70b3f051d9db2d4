    -- The attributes of the device h.
    h.vendor,
    h.arch,
    h.multiprocessors,
    h.l2_bytes,
    h.shared_memory_per_block_bytes,
    h.memory_bytes,
    h.memory_bandwidth_bytes_per_s,
    h.max_clock_mhz,
