-- One row per failed attempt, in Mulligan's database. The rows stay: a counter must not fall.
CREATE TABLE IF NOT EXISTS clipscribe_failures (
    job_id TEXT NOT NULL,
    token INTEGER NOT NULL,
    error_type TEXT NOT NULL,
    duration_bucket TEXT NOT NULL,
    is_permanent INTEGER NOT NULL,  -- the job ended
    is_retriable INTEGER NOT NULL,  -- the class of the failure is
    is_wrong INTEGER NOT NULL,  -- an unchanged retry succeeded after a failure that is not
    PRIMARY KEY (job_id, token)
)
