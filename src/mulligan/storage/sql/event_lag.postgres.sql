-- Measure how long the oldest transaction that is still writing events has been open.
SELECT coalesce(CAST(max(extract(epoch FROM clock_timestamp() - a.xact_start)) * 1000000 AS BIGINT), 0)
FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE l.locktype = 'advisory' AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND ((CAST(l.classid AS bigint) << 32) | CAST(l.objid AS bigint)) >> 48 = {p}event_lock_base() >> 48
