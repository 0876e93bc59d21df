-- What a dead job died of, beside its error: found by an index, cleared by the move that leaves dead.
ALTER TABLE {p}job ADD COLUMN died_code TEXT CHECK (died_code IS NULL OR state = 'dead');
ALTER TABLE {p}job ADD COLUMN died_class TEXT CHECK (died_class IS NULL OR state = 'dead');
ALTER TABLE {p}job ADD COLUMN died_group TEXT CHECK (died_group IS NULL OR state = 'dead');

-- Of those that are dead already: the fingerprint of the attempt they died with. Ends without an attempt have the
-- names that the recipe gives them; what has none is named for its code.
UPDATE {p}job SET
  died_code = COALESCE(json_extract(error, '$.code'), 'UNKNOWN'),
  died_class = COALESCE(json_extract(error, '$.class'), 'unknown')
WHERE state = 'dead';
UPDATE {p}job SET
  died_group = COALESCE(
    (SELECT NULLIF(fingerprint, '') FROM {p}attempt
     WHERE job_id = {p}job.id AND token = {p}job.token AND verb = 'die'
       AND generation = {p}job.generation AND code = died_code),
    CASE died_code WHEN 'DEADLINE_PASSED' THEN 'v2-f897ea9ae0be' WHEN 'KIND_UNKNOWN' THEN 'v2-4b25de764b15'
                   ELSE 'code-' || died_code END)
WHERE state = 'dead';

CREATE INDEX {p}job_for_dead ON {p}job (id, died_class, owner, kind, queue) WHERE state = 'dead';
CREATE INDEX {p}job_for_code ON {p}job (died_code, id, owner, kind) WHERE state = 'dead';
CREATE INDEX {p}job_for_group ON {p}job (died_group, id, owner, kind) WHERE state = 'dead';
CREATE INDEX {p}job_for_deaths ON {p}job (died_group, finished_at, owner, kind, died_code, died_class)
  WHERE state = 'dead';
CREATE INDEX {p}job_for_owner_deaths ON {p}job (owner, died_group, finished_at, kind, died_code, died_class)
  WHERE state = 'dead';
CREATE INDEX {p}job_for_key ON {p}job (unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX {p}attempt_for_recovery ON {p}attempt (fingerprint, job_id, generation) WHERE verb = 'die';

-- What people have said about a group; scope: '*' for all owners together, else one of them.
CREATE TABLE {p}failure_group (
  fingerprint TEXT NOT NULL,
  scope       TEXT NOT NULL,
  state       TEXT NOT NULL CHECK (state IN ('open', 'muted', 'resolved')),
  until       INTEGER,
  note        TEXT NOT NULL DEFAULT '',
  actor       TEXT NOT NULL DEFAULT '',
  at          INTEGER NOT NULL,
  resolved_at INTEGER,
  PRIMARY KEY (fingerprint, scope)
) STRICT, WITHOUT ROWID;
