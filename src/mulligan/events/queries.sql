-- Statements about the event log, its readers, and statistics.
-- The macros are explained in storage/statements.py.

-- fragment: is_audit_event
-- Condition: the event is an action of a person. It must equal that of the index event_for_audit.
actor NOT IN ('', 'alert', 'breaker', 'guard', 'handler', 'hint', 'schedule', 'upkeep') AND type <> 'job.stale_refused'

-- name: list_events
-- Read events in a range of ids, in order.
-- A bundle covers `bundle` ids up to its own, so it is read if either end lies in the range.
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event
WHERE id > :cursor AND id < :upper AND id - COALESCE(bundle, 1) < :top ORDER BY id LIMIT :limit

-- name: list_events_of_owner
-- Read events of an owner in a range of ids, in order, and bundles that may contain some.
-- `replace` is the only function of both databases that finds a text of any length in another.
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event
WHERE id > :cursor AND id < :upper AND id - COALESCE(bundle, 1) < :top
  AND (bundle IS NULL AND owner = :owner OR bundle IS NOT NULL AND (:in_line = '' OR replace(data, :in_line, '') <> data))
ORDER BY id LIMIT :limit

-- name: list_events_of_types
-- Read events of some types in a range of ids, in order. Bundles that reach into it are included.
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data, bundle FROM {p}event
WHERE id > :cursor AND id < :upper AND id - COALESCE(bundle, 1) < :top AND type {in:types} ORDER BY id LIMIT :limit

-- name: list_gate_events
-- Read the gate events near both ends of a job's wait: one began it, another may have ended it.
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data
FROM (SELECT * FROM {p}event WHERE id > :after AND id < :before ORDER BY id LIMIT :limit) AS begins
WHERE type IN ('queue.paused', 'queue.resumed', 'dependency.opened', 'dependency.closed', 'kind.held', 'kind.released')
UNION
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data
FROM (SELECT * FROM {p}event WHERE id > :after AND id < :before ORDER BY id DESC LIMIT :limit) AS ends
WHERE type IN ('queue.paused', 'queue.resumed', 'dependency.opened', 'dependency.closed', 'kind.held', 'kind.released')
ORDER BY id

-- name: pruned_event_id
-- Read the id up to which retention has pruned all events except actions of people.
SELECT value FROM {p}meta WHERE key = 'events_floor'

-- name: list_oldest_events
-- Read the oldest events above the pruned ones, to find out whether any is old enough.
SELECT id, at FROM {p}event WHERE id > :floor ORDER BY id LIMIT :limit

-- name: prune_events
-- Delete events in a range of ids, except actions of people.
DELETE FROM {p}event WHERE id > :floor AND id <= :top AND NOT ({part:is_audit_event}) RETURNING id

-- name: raise_pruned_event_id
-- Raise the id up to which retention has pruned events. It never goes down.
INSERT INTO {p}meta AS known (key, value) VALUES ('events_floor', :floor)
ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE CAST(known.value AS bigint) < CAST(excluded.value AS bigint)

-- name: prune_audit_events
-- Delete old events that are actions of people.
DELETE FROM {p}event WHERE id IN (
  SELECT id FROM (SELECT id, at FROM {p}event WHERE {part:is_audit_event} ORDER BY id LIMIT :limit) AS oldest
  WHERE at < :before) RETURNING id

-- name: get_reader
-- Read the position of a consumer of the event log without locking it.
SELECT {ReaderRow} FROM {p}reader WHERE name = :name

-- name: insert_reader
-- Insert a consumer of the event log, unless there is one.
INSERT INTO {p}reader (name, cursor, body, updated_at) VALUES (:name, :cursor, '', :now) ON CONFLICT (name) DO NOTHING

-- name: advance_reader
-- Store how far a consumer has read the event log.
UPDATE {p}reader SET cursor = :cursor, body = :body, updated_at = :now WHERE name = :name

-- name: list_readers
-- List the consumers of the event log.
SELECT {ReaderRow} FROM {p}reader ORDER BY name

-- name: list_events_to_count
-- Read single events for statistics. job.started is left out: the end of the attempt covers it.
-- job.queued is counted by `count_queued_events`.
SELECT at, type, attempt, data FROM {p}event
WHERE id > :cursor AND id <= :top AND bundle IS NULL AND type NOT IN ('job.started', 'job.queued')

-- name: list_bundles_to_count
-- Read bundles of events for statistics. job.started is left out: the end of the attempt covers it.
SELECT id, at, type, data, bundle FROM {p}event
WHERE id > :cursor AND id < :upper AND id - bundle < :top AND bundle IS NOT NULL AND type <> 'job.started'

-- name: list_stats
-- Read statistics of a range of minutes.
SELECT {StatRow} FROM {p}stat
WHERE minute >= :since AND minute < :until AND name {in:names} ORDER BY minute, name, labels

-- name: list_stat_totals
-- Read the totals since counting began.
SELECT {StatRow} FROM {p}stat WHERE minute = 0 ORDER BY name, labels

-- name: sum_stats
-- Sum statistics from a minute on, by name and labels.
SELECT name, labels, SUM(n), SUM(total) FROM {p}stat
WHERE minute >= :since AND name {in:names} GROUP BY name, labels

-- name: first_stat_minute
-- Find the first minute of a range that has statistics.
SELECT min(minute) FROM {p}stat WHERE minute >= :since AND minute < :until

-- name: roll_up_stats
-- Add the statistics of an hour's minutes to its first minute.
INSERT INTO {p}stat AS known ({StatRow})
SELECT CAST(:hour AS bigint), name, labels, CAST(sum(n) AS bigint), sum(total) FROM {p}stat
WHERE minute > :hour AND minute < :upper GROUP BY name, labels
ON CONFLICT (minute, name, labels) DO UPDATE SET n = known.n + excluded.n, total = known.total + excluded.total

-- name: delete_stats
-- Delete the statistics of a range of minutes.
DELETE FROM {p}stat WHERE minute > :after AND minute < :before
