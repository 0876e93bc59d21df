-- Statements of `mulligan doctor` about the server's housekeeping.
-- The macros are explained in storage/statements.py.

-- name: list_vacuum_blockers
-- List what keeps VACUUM from removing dead rows, or the server from removing its log: long running
-- transactions, forgotten prepared ones, and replication slots without a consumer.
SELECT 'transaction' AS what, CAST(pid AS text) AS name, coalesce(usename, '') AS owner,
  CAST(extract(epoch FROM clock_timestamp() - xact_start) AS double precision) AS seconds, CAST(0 AS bigint) AS wal
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
  AND state NOT LIKE 'idle in transaction%' AND xact_start < clock_timestamp() - make_interval(secs => :seconds)
UNION ALL
SELECT 'prepared transaction', gid, CAST(owner AS text),
  CAST(extract(epoch FROM clock_timestamp() - prepared) AS double precision), 0
FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => :seconds)
UNION ALL
SELECT 'replication slot', CAST(slot_name AS text), CASE WHEN active THEN 'active' ELSE 'inactive' END,
  CAST(greatest(age(xmin), age(catalog_xmin), 0) AS double precision), kept
FROM pg_replication_slots, LATERAL (
  SELECT CAST(coalesce(pg_wal_lsn_diff(
    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn), 0) AS bigint) AS kept
) AS log
WHERE NOT active AND (kept > :wal OR greatest(age(xmin), age(catalog_xmin), 0) > :xids)
   OR greatest(age(xmin), age(catalog_xmin), 0) > 100 * :xids
ORDER BY 1 DESC, 4 DESC LIMIT 10

-- name: list_table_sizes
-- Measure each table: live and dead rows, its bytes, and the bytes that its live rows need.
SELECT CAST(c.relname AS text), s.n_live_tup, s.n_dead_tup, pg_relation_size(c.oid),
  CAST(s.n_live_tup * (28 + coalesce((
    SELECT sum((1 - null_frac) * avg_width) FROM pg_stats AS w
    WHERE w.schemaname = s.schemaname AND w.tablename = s.relname), 0)) AS bigint),
  current_setting('autovacuum') = 'on' AND NOT coalesce(array_to_string(c.reloptions, ',') LIKE '%autovacuum_enabled=false%', false),
  CAST(extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum)) AS double precision)
FROM pg_class AS c JOIN pg_stat_user_tables AS s ON s.relid = c.oid
WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = CAST('{p}job' AS regclass))
ORDER BY 1
