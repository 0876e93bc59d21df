-- Set or replace the limit of a queue or dependency.
INSERT INTO {p}limits ({limit}) VALUES (:scope, :key, :concurrency, :rate, :since, :until, :reason, :actor)
ON CONFLICT (scope, key) DO UPDATE SET
  concurrency = excluded.concurrency, rate = excluded.rate, since = excluded.since, until = excluded.until,
  reason = excluded.reason, actor = excluded.actor
