-- Store the state of a failure group.
INSERT INTO {p}failure_group ({failure_group})
VALUES (:fingerprint, :scope, :state, :until, :note, :actor, :at, :resolved_at)
ON CONFLICT (fingerprint, scope) DO UPDATE SET
  state = excluded.state, until = excluded.until, note = excluded.note, actor = excluded.actor, at = excluded.at,
  resolved_at = excluded.resolved_at
