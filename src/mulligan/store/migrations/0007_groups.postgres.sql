-- What a dead job died of, beside its error: found by an index, cleared by the move that leaves dead.
ALTER TABLE {p}job ADD COLUMN died_code TEXT COLLATE "C" CHECK (died_code IS NULL OR state = 'dead');
ALTER TABLE {p}job ADD COLUMN died_class TEXT COLLATE "C" CHECK (died_class IS NULL OR state = 'dead');
ALTER TABLE {p}job ADD COLUMN died_group TEXT COLLATE "C" CHECK (died_group IS NULL OR state = 'dead');

-- Of those that are dead already: the fingerprint of the attempt they died with. Ends without an attempt have the
-- names that the recipe gives them; what has none is named for its code.
WITH dead AS MATERIALIZED (
  SELECT job.id, COALESCE(CAST(job.error AS jsonb) ->> 'code', 'UNKNOWN') AS code,
         COALESCE(CAST(job.error AS jsonb) ->> 'class', 'unknown') AS class, job.token, job.generation
  FROM {p}job AS job WHERE job.state = 'dead'
), named AS (
  SELECT dead.id, dead.code, dead.class, NULLIF(attempt.fingerprint, '') AS fingerprint
  FROM dead LEFT JOIN {p}attempt AS attempt
    ON attempt.job_id = dead.id AND attempt.token = dead.token AND attempt.verb = 'die'
   AND attempt.generation = dead.generation AND attempt.code = dead.code
)
UPDATE {p}job AS job SET
  died_code = named.code, died_class = named.class,
  died_group = COALESCE(named.fingerprint,
    CASE named.code WHEN 'DEADLINE_PASSED' THEN 'v2-f897ea9ae0be' WHEN 'KIND_UNKNOWN' THEN 'v2-4b25de764b15'
                    ELSE 'code-' || named.code END)
FROM named WHERE job.id = named.id;

CREATE INDEX job_for_dead ON {p}job (id, died_class, owner, kind, queue) WHERE state = 'dead';
CREATE INDEX job_for_code ON {p}job (died_code, id, owner, kind) WHERE state = 'dead';
CREATE INDEX job_for_group ON {p}job (died_group, id, owner, kind) WHERE state = 'dead';
CREATE INDEX job_for_deaths ON {p}job (died_group, finished_at, owner, kind, died_code, died_class)
  WHERE state = 'dead';
CREATE INDEX job_for_owner_deaths ON {p}job (owner, died_group, finished_at, kind, died_code, died_class)
  WHERE state = 'dead';
CREATE INDEX job_for_key ON {p}job (unique_key COLLATE "C") WHERE unique_key IS NOT NULL;
CREATE INDEX attempt_for_recovery ON {p}attempt (fingerprint, job_id, generation) WHERE verb = 'die';

-- What people have said about a group; scope: '*' for all owners together, else one of them.
CREATE TABLE {p}failure_group (
  fingerprint TEXT COLLATE "C" NOT NULL,
  scope       TEXT COLLATE "C" NOT NULL,
  state       TEXT NOT NULL CHECK (state IN ('open', 'muted', 'resolved')),
  until       BIGINT,
  note        TEXT NOT NULL DEFAULT '',
  actor       TEXT NOT NULL DEFAULT '',
  at          BIGINT NOT NULL,
  resolved_at BIGINT,
  PRIMARY KEY (fingerprint, scope)
);
