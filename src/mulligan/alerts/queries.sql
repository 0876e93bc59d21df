-- Statements about the stored states of alert rules.
-- The macros are explained in storage/statements.py.

-- name: list_alerts
-- List the state of all alert rules.
SELECT {AlertRow} FROM {p}alert ORDER BY rule, key

-- name: write_alert
-- Store the state of an alert rule for a key.
INSERT INTO {p}alert ({AlertRow})
VALUES (:rule, :key, :state, :since, :evaluated_at, :value, :evidence, :acted, :until, :actor, :reason)
ON CONFLICT (rule, key) DO UPDATE SET state = excluded.state, since = excluded.since, evaluated_at = excluded.evaluated_at,
  value = excluded.value, evidence = excluded.evidence, acted = excluded.acted, until = excluded.until,
  actor = excluded.actor, reason = excluded.reason

-- name: delete_old_alerts
-- Delete alerts that were resolved long ago, and silences that are over.
DELETE FROM {p}alert WHERE (state = 'resolved' AND acted = '' AND since < :before)
  OR (state = 'silenced' AND until < :before) RETURNING rule
