-- Statements about batches: a definition that members lock in shared mode, and a progress row, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: seal_free_batch
-- Seal a batch, unless a transaction is adding members. SKIP LOCKED: upkeep tries again later.
UPDATE {p}batch SET sealed_at = {p}now_us()
WHERE id IN (SELECT id FROM {p}batch WHERE id = :id AND sealed_at IS NULL FOR UPDATE SKIP LOCKED) RETURNING id

-- name: find_batch_members_by_key
-- Find members of a batch by unique key, in any state.
-- `|| ''` keeps the planner from the index of members: it would read all of them.
SELECT owner, kind, unique_key, id, payload FROM {p}job
WHERE unique_key IS NOT NULL
  AND substr(unique_key, 1, 200) COLLATE "C" = ANY (ARRAY(SELECT substr(key, 1, 200) FROM unnest(CAST(:keys AS text[])) AS key))
  AND unique_key = ANY (CAST(:keys AS text[])) AND batch_id || '' = :batch_id
ORDER BY id DESC

-- name: delete_batch
-- Delete the definition of a batch, unless a transaction that tried to add members still locks it.
DELETE FROM {p}batch WHERE id IN (SELECT id FROM {p}batch WHERE id = :id FOR UPDATE SKIP LOCKED) RETURNING id
