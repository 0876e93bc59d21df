-- Close a gate, or extend one that is closed. A gate that is closed without an end stays so.
INSERT INTO {p}gate ({gate}) VALUES (:scope, :key, :since, :until, :reason, :actor, :probe_at)
ON CONFLICT (scope, key) DO UPDATE SET
  until = CASE WHEN {p}gate.until IS NULL OR excluded.until IS NULL THEN NULL
               WHEN excluded.until > {p}gate.until THEN excluded.until ELSE {p}gate.until END,
  since = CASE WHEN {p}gate.until <= excluded.since THEN excluded.since ELSE {p}gate.since END,
  reason = CASE WHEN {p}gate.until IS NULL THEN {p}gate.reason ELSE excluded.reason END,
  actor = CASE WHEN {p}gate.until IS NULL THEN {p}gate.actor ELSE excluded.actor END,
  probe_at = CASE WHEN {p}gate.until IS NULL THEN {p}gate.probe_at ELSE excluded.probe_at END
