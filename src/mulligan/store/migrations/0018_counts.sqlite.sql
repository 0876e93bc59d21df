-- Counts leave our own kinds out, and should not have to read each job for that. Only jobs that are parked or cancelled
-- are in these indexes: claims and endings write none of them.
DROP INDEX {p}job_for_parked;
DROP INDEX {p}job_for_cancelled;
CREATE INDEX {p}job_for_parked ON {p}job (id, kind) WHERE state = 'parked';
CREATE INDEX {p}job_for_cancelled ON {p}job (id, kind) WHERE state = 'cancelled';
