-- One row a (case, config): its median over measurements, and how much they differ. Inside other queries only.
CREATE VIEW config_times AS
WITH
-- include _times.sql
FROM times;
