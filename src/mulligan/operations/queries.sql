-- Statements about operations and their items.
-- The macros are explained in storage/statements.py.

-- name: insert_operation
-- Insert an operation. No row: its key exists, or an unfinished operation has the same content.
INSERT INTO {p}operation ({OperationRow}) VALUES (
  :id, :action, :filter, :fixed, :params, :steps, :rate, :stop_if, :scope, :actor, :reason, :key, :digest, :state,
  :step, :total, :tallies, :recent, :tokens, :tokens_at, :version, :active, :due_at, :moved_at, :created_at,
  :started_at, :finished_at, :note)
ON CONFLICT DO NOTHING
RETURNING id

-- name: get_operation
-- Read one operation.
SELECT {OperationRow} FROM {p}operation WHERE id = :id

-- name: lock_operation
-- Lock and read one operation. Waits for the worker that is processing it.
SELECT {OperationRow} FROM {p}operation WHERE id = :id {lock:FOR UPDATE}

-- name: try_lock_operation
-- Lock and read one operation, or return no row if another worker is processing it.
SELECT {OperationRow} FROM {p}operation WHERE id = :id {lock:FOR UPDATE SKIP LOCKED}

-- name: find_equal_operation
-- Find the operation with this key, or else the unfinished one with the same content.
SELECT {OperationRow} FROM {p}operation
WHERE (scope = :scope AND key = CAST(:key AS TEXT))
   OR (digest = :digest AND state IN ('gathering', 'running', 'paused'))
ORDER BY CASE WHEN scope = :scope AND key = CAST(:key AS TEXT) THEN 0 ELSE 1 END LIMIT 1

-- name: list_operations
-- List operations, newest first.
SELECT {OperationRow} FROM {p}operation
WHERE (CAST(:scope AS TEXT) IS NULL OR scope = :scope) AND (CAST(:before AS TEXT) IS NULL OR id < :before)
ORDER BY id DESC LIMIT :limit

-- name: find_operations
-- Find operations whose id starts with a prefix.
SELECT id FROM {p}operation
WHERE id >= :prefix AND id < :upper AND (CAST(:scope AS TEXT) IS NULL OR scope = :scope) ORDER BY id LIMIT :limit

-- name: list_due_operations
-- List operations that are due to continue.
-- A due time far in the future comes from a clock that was set back; it counts as due.
SELECT id FROM {p}operation
WHERE active AND (due_at <= CAST(:at_time AS BIGINT) OR due_at > CAST(:upper AS BIGINT)) ORDER BY due_at LIMIT :limit

-- name: update_operation
-- Store an operation by compare-and-set on its version.
UPDATE {p}operation SET
  state = :state, step = :step, total = :total, tallies = :tallies, recent = :recent, tokens = :tokens,
  tokens_at = :tokens_at, version = :version + 1, active = :active, due_at = :due_at, moved_at = :moved_at,
  started_at = :started_at, finished_at = :finished_at, note = :note
WHERE id = :id AND version = :version
RETURNING id

-- name: add_items
-- Add the next matching jobs to an operation, as they are now, in order of id.
INSERT INTO {p}operation_item (operation, place, job_id, generation, initial_state, cause, code)
SELECT CAST(:operation AS TEXT), CAST(:place AS BIGINT) + row_number() OVER (ORDER BY id), id, generation, state,
       died_group, died_code
FROM (
  SELECT id, generation, state, died_group, died_code FROM {p}job
  WHERE {matching} AND id > :after ORDER BY id LIMIT :limit
) AS few
RETURNING place

-- name: get_last_item
-- Find the last item of an operation.
SELECT place, job_id FROM {p}operation_item WHERE operation = :operation ORDER BY place DESC LIMIT 1

-- name: list_waiting_items
-- List the next items of an operation to act on.
SELECT {ItemRow} FROM {p}operation_item
WHERE operation = :operation AND state = 'waiting' AND place <= :place ORDER BY place LIMIT :limit

-- name: list_ended_items
-- Find sent items whose job has ended its first counted attempt since the retry, or will have none.
-- A job that died unclaimed and then succeeded at once has no attempt row; its `succeeded_by` is set.
SELECT item.place, item.cause,
       COALESCE(attempt.verb, CASE WHEN job.succeeded_by IS NOT NULL AND job.generation = item.generation + 1 THEN 'succeed' END),
       NULLIF(attempt.fingerprint, ''), attempt.code,
       COALESCE(NULLIF(attempt.public, ''), attempt.reason, ''), job.state, job.died_group,
       CASE WHEN job.generation > item.generation + 1 THEN 1 ELSE 0 END
FROM {p}operation_item AS item
LEFT JOIN {p}job AS job ON job.id = item.job_id
LEFT JOIN {p}attempt AS attempt ON attempt.job_id = item.job_id AND attempt.token = (
  SELECT min(first.token) FROM {p}attempt AS first
  WHERE first.job_id = item.job_id AND first.generation = item.generation + 1
    AND first.verb IN ('succeed', 'retry', 'die', 'park', 'snooze', 'stop'))
WHERE item.operation = :operation AND item.state = 'sent'
  AND (attempt.token IS NOT NULL OR job.id IS NULL OR job.generation > item.generation + 1
       OR job.state IN ('succeeded', 'dead', 'cancelled', 'parked'))
ORDER BY item.place LIMIT :limit

-- name: mark_items_sent
-- Mark items of an operation as sent.
UPDATE {p}operation_item SET state = 'sent'
WHERE operation = :operation AND place {in:places bigint}

-- name: mark_items_ended
-- Store the outcome of items of an operation.
UPDATE {p}operation_item SET state = 'ended', outcome = :outcome, message = :message, ended_at = :at
WHERE operation = :operation AND place {in:places bigint}

-- name: list_items
-- List the items of an operation, by state or outcome.
SELECT {ItemRow} FROM {p}operation_item
WHERE operation = :operation AND place > :after
  AND (CAST(:status AS TEXT) IS NULL OR state = :status OR outcome = :status)
ORDER BY place LIMIT :limit

-- name: count_repeated_failures
-- Count the items of an operation that failed again with the same cause, by code.
SELECT COALESCE(code, ''), count(*) FROM {p}operation_item
WHERE operation = :operation AND outcome = 'same' GROUP BY 1 ORDER BY 2 DESC, 1

-- name: find_first_sent_item
-- Find the first job of an operation that was retried and has not ended.
SELECT job_id FROM {p}operation_item WHERE operation = :operation AND state = 'sent' ORDER BY place LIMIT 1

-- name: count_late_matches
-- Count jobs that began to match the filter of an operation after it started.
SELECT count(*) FROM (
  SELECT id FROM {p}job
  WHERE {matching} AND id > :after AND (finished_at IS NULL OR finished_at > CAST(:began AS BIGINT)) LIMIT :examined
) AS found
WHERE NOT EXISTS (
  SELECT 1 FROM {p}operation_item AS item WHERE item.operation = :operation AND item.job_id = found.id)

-- name: preview_operation
-- Count matching jobs by everything a preview of an operation shows, up to a cap.
SELECT kind, owner, queue, uses, state, died_code, died_group, count(*), sum(cost), CAST(sum(token) AS BIGINT), min(id)
FROM (
  SELECT id, kind, owner, queue, uses, state, died_code, died_group, cost, token FROM {p}job WHERE {matching} LIMIT :cap
) AS few
GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 8 DESC

-- name: sum_costs_by_kind
-- Sum cost and attempts by kind over the newest jobs.
SELECT kind, sum(cost), CAST(sum(token) AS BIGINT) FROM (
  SELECT kind, cost, token FROM {p}job ORDER BY id DESC LIMIT :limit
) AS newest
GROUP BY 1

-- name: list_released_keys
-- List matching jobs that have a unique key but do not hold it any more.
SELECT id, owner, kind, unique_key, unique_cover FROM {p}job
WHERE {matching} AND unique_key IS NOT NULL AND unique_hash IS NULL LIMIT :limit
