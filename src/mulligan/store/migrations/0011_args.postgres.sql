-- What filters find jobs by: arguments that their kind declares.
CREATE TABLE {p}job_arg (
  name   TEXT COLLATE "C" NOT NULL,
  value  TEXT COLLATE "C" NOT NULL,
  job_id TEXT COLLATE "C" NOT NULL,
  kind   TEXT NOT NULL,
  PRIMARY KEY (name, value, job_id)
);
CREATE INDEX job_arg_for_retention ON {p}job_arg (job_id);

CREATE INDEX job_for_owner ON {p}job (owner, id) WHERE owner <> '';
CREATE INDEX job_for_batch_list ON {p}job (batch_id, id) WHERE batch_id IS NOT NULL;
CREATE INDEX job_for_parked ON {p}job (id) WHERE state = 'parked';
CREATE INDEX job_for_cancelled ON {p}job (id) WHERE state = 'cancelled';
CREATE INDEX job_for_retried ON {p}job (id) WHERE generation > 1;
