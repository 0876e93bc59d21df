-- Store the state of an alert rule for a key.
INSERT INTO {p}alert ({alert})
VALUES (:rule, :key, :state, :since, :evaluated_at, :value, :evidence, :acted, :until, :actor, :reason)
ON CONFLICT (rule, key) DO UPDATE SET state = excluded.state, since = excluded.since, evaluated_at = excluded.evaluated_at,
  value = excluded.value, evidence = excluded.evidence, acted = excluded.acted, until = excluded.until,
  actor = excluded.actor, reason = excluded.reason
