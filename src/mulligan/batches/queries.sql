-- Statements about batches: a definition that members lock in shared mode, and a progress row.
-- The macros are explained in storage/statements.py.

-- fragment: all_members_ended
-- Condition: the batch `definition` has no unfinished member.
NOT EXISTS (SELECT 1 FROM {p}job AS member
            WHERE member.batch_id = definition.id AND member.state IN ('queued', 'running', 'parked'))

-- fragment: can_complete
-- Condition: the batch of `progress` is sealed without an event, or all its members have ended.
-- EXISTS makes the planner start from batches without an outcome instead of all batches.
outcome IS NULL AND EXISTS (
  SELECT 1 FROM {p}batch AS definition
  WHERE definition.id = progress.id AND sealed_at IS NOT NULL AND (NOT sealed_event_written OR {part:all_members_ended})
)

-- fragment: can_expire
-- Condition: the batch is past its time, and completed or never sealed.
expires_at IS NOT NULL AND expired_at IS NULL AND expires_at <= :now AND (outcome IS NOT NULL OR sealed_at IS NULL)

-- name: insert_batch
-- Insert a batch. No row: its unique key is held; the caller then looks up the holder.
INSERT INTO {p}batch (id, name, owner, tolerance, on_complete, unique_key, unique_hash, created_at, sealed_at, parent_id, parent_step)
VALUES (:id, :name, :owner, :tolerance, :on_complete, :unique_key, :unique_hash, :now,
        CASE WHEN CAST(:sealed AS BOOLEAN) THEN CAST(:now AS BIGINT) END, :parent_id, :parent_step)
ON CONFLICT (unique_hash) WHERE unique_hash IS NOT NULL DO NOTHING
RETURNING id

-- name: insert_batch_progress
-- Insert the progress row of a batch.
INSERT INTO {p}batch_progress (id, expires_at)
VALUES (:id, COALESCE(CAST(:expires_at AS BIGINT), :now + CAST(:expires_span AS BIGINT)))

-- name: find_batch_by_key
-- Find the batch that holds a unique key.
SELECT id FROM {p}batch WHERE unique_hash = :unique_hash

-- name: get_batch
-- Read one batch.
SELECT {BatchRow} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id) WHERE id = :id

-- name: get_batch_for_share
-- Read one batch and lock its definition in shared mode, to add members.
-- Sealing waits for this lock. Ending a member does not: it locks batch_progress only.
SELECT {BatchRow} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE id = :id {lock:FOR SHARE OF definition}

-- name: get_batch_for_update
-- Read one batch and lock its definition exclusively: no transaction may be adding members.
SELECT {BatchRow} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE id = :id {lock:FOR UPDATE OF definition}

-- name: seal_batch
-- Seal a batch. Waits for transactions that are adding members.
UPDATE {p}batch SET sealed_at = :now WHERE id = :id AND sealed_at IS NULL RETURNING id

-- name: cancel_batch
-- Cancel a batch, and seal it if it is open.
UPDATE {p}batch SET sealed_at = COALESCE(sealed_at, :now), cancelled_at = :now, cancel_reason = :reason
WHERE id = :id AND cancelled_at IS NULL RETURNING id

-- name: holds_lease
-- Test whether the attempt that adds members to its batch still holds its lease, and lock it.
-- The lock keeps the attempt from ending before the members are committed. KEY SHARE: it can still
-- save checkpoints and report progress, because neither changes the key.
SELECT 1 FROM {p}job
WHERE id = :id AND worker = :worker AND token = :token AND state = 'running' AND batch_id = :batch_id {lock:FOR KEY SHARE}

-- name: lock_batches
-- Lock batches in order of id, so that transactions cannot deadlock.
-- Members are read by a later statement, which sees everything that earlier holders committed.
SELECT id FROM {p}batch_progress WHERE id {in:ids} ORDER BY id {lock:FOR UPDATE}

-- name: lock_free_batches
-- Lock batches in order of id, and skip those that are locked.
SELECT id FROM {p}batch_progress WHERE id {in:ids} ORDER BY id {lock:FOR UPDATE SKIP LOCKED}

-- name: list_completable_batches
-- Select batches that are sealed, have no outcome and no unfinished member.
-- One index probe per unfinished state, however many members there are.
SELECT {BatchRow} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE id {in:ids} AND outcome IS NULL AND sealed_at IS NOT NULL AND {part:all_members_ended}
ORDER BY id

-- name: count_batch_members
-- Count the members of batches by state and by must_have.
SELECT batch_id, state, must_have, count(*) FROM {p}job
WHERE batch_id {in:ids} GROUP BY batch_id, state, must_have

-- name: complete_batch
-- Store the outcome of a batch. The condition lets only one writer do so per generation.
UPDATE {p}batch_progress SET outcome = :outcome, outcome_at = :now
WHERE id = :id AND generation = :generation AND outcome IS NULL RETURNING id

-- name: reopen_batch
-- Start a new generation of a completed batch, because a member was retried.
UPDATE {p}batch_progress
SET generation = generation + 1, previous = outcome, outcome = NULL, outcome_at = NULL
WHERE id = :id AND outcome IS NOT NULL AND expired_at IS NULL AND NOT being_pruned RETURNING generation

-- name: mark_sealed_event_written
-- Record that the event batch.sealed is written. No row: it was already.
UPDATE {p}batch_progress SET sealed_event_written = true WHERE id = :id AND NOT sealed_event_written RETURNING id

-- name: list_batches_to_complete
-- Find batches that upkeep must complete.
SELECT id FROM {p}batch_progress AS progress WHERE {part:can_complete}
ORDER BY id LIMIT :limit

-- name: list_batches_to_expire
-- Find batches that are due to expire.
SELECT {BatchRow} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE {part:can_expire}
ORDER BY expires_at LIMIT :limit

-- name: expire_batch
-- Mark a completed batch as expired.
UPDATE {p}batch_progress SET expired_at = :now
WHERE id = :id AND outcome IS NOT NULL AND expired_at IS NULL AND expires_at <= :now RETURNING id

-- fragment: is_orphaned
-- Condition: the batch has child jobs that go on although their parent has ended or is gone.
-- Children that a person has repaired go on.
outcome IS NULL AND generation = 1 AND parent_id IS NOT NULL AND cancelled_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM {p}job AS parent WHERE parent.id = parent_id AND parent.state IN ('queued', 'running', 'parked'))

-- name: list_orphaned_batches
-- List batches of child jobs that go on although their parent has ended or is gone.
SELECT id FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE {part:is_orphaned} ORDER BY id LIMIT :limit

-- name: list_batches_of_children
-- List the batches of child jobs that a job has waited for.
SELECT id, name FROM {p}batch WHERE parent_id = :id ORDER BY id LIMIT 100

-- name: list_member_results
-- Read how the members of a batch ended, in the order of enqueue.
SELECT id, state, result, error FROM {p}job WHERE batch_id = :id ORDER BY id

-- name: list_prunable_batches
-- Lock batches that retention may remove: completed long ago, and expired long ago if they expire.
-- A job may still wait for the repair of its children.
-- SKIP LOCKED: upkeep never waits for other transactions.
SELECT {BatchRow} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE outcome_at IS NOT NULL AND outcome_at < :before AND (expires_at IS NULL OR expired_at < :before)
  AND (parent_id IS NULL OR NOT EXISTS (SELECT 1 FROM {p}job AS parent WHERE parent.id = parent_id AND parent.state = 'queued'))
ORDER BY outcome_at LIMIT :limit {lock:FOR UPDATE OF progress SKIP LOCKED}

-- name: list_prunable_members
-- Lock members of a batch that is being removed.
SELECT id, kind, state, owner, error FROM {p}job WHERE batch_id = :id LIMIT :limit {lock:FOR UPDATE SKIP LOCKED}

-- name: delete_batch_progress
-- Delete the progress row of a batch.
DELETE FROM {p}batch_progress WHERE id = :id

-- name: mark_batch_being_pruned
-- Mark a batch as being removed. From now on its members cannot be retried, as some may be gone.
UPDATE {p}batch_progress SET being_pruned = true WHERE id = :id

-- name: list_batches
-- List batches, newest first, by owner and state.
SELECT {BatchRow} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE (CAST(:owner AS TEXT) IS NULL OR owner = :owner) AND (CAST(:before AS TEXT) IS NULL OR id < :before)
  AND (CAST(:state AS TEXT) IS NULL
       OR :state = CASE WHEN expired_at IS NOT NULL THEN 'expired' ELSE COALESCE(outcome, 'processing') END)
ORDER BY id DESC LIMIT :limit

-- name: find_batches
-- Find batches whose id starts with a prefix.
SELECT id FROM {p}batch WHERE substr(id, 1, CAST(:length AS INTEGER)) = :prefix ORDER BY id LIMIT :limit

-- name: lock_batch_members
-- Lock and read the members of a batch that are in the given states.
-- ORDER BY id: all transactions lock jobs in this order, so they cannot deadlock.
SELECT {JobRow} FROM {p}job WHERE batch_id = :id AND state {in:states} ORDER BY id {lock:FOR UPDATE}

-- name: list_batch_members
-- Read the members of a batch in the order of enqueue, after the given id.
SELECT {JobRow} FROM {p}job WHERE batch_id = :id AND id > :after ORDER BY id LIMIT :limit

-- name: count_batch_failures
-- Count the dead members of a batch by code, with the newest job of each code.
SELECT died_code, count(*), max(id) FROM {p}job WHERE batch_id = :id AND state = 'dead'
GROUP BY died_code ORDER BY 2 DESC, 1 LIMIT :limit

-- name: list_batch_events
-- List the events of a batch itself, without those of its members.
SELECT id, at, type, job_id, batch_id, owner, attempt, token, actor, data FROM {p}event
WHERE batch_id = :id AND job_id IS NULL ORDER BY id
