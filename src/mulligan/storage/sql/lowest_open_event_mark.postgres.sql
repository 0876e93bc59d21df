-- Find the lowest mark of transactions that are still writing events. All their ids are above it.
SELECT min(((CAST(classid AS bigint) << 32) | CAST(objid AS bigint)) - {p}event_lock_base())
FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND ((CAST(classid AS bigint) << 32) | CAST(objid AS bigint)) >> 48 = {p}event_lock_base() >> 48
