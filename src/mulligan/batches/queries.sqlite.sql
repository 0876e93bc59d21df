-- Statements about batches: a definition that members lock in shared mode, and a progress row, where SQLite needs another form.
-- The macros are explained in storage/statements.py.

-- name: seal_free_batch
-- Seal a batch. SQLite has one writer, so no transaction can be adding members.
UPDATE {p}batch SET sealed_at = :now WHERE id = :id AND sealed_at IS NULL RETURNING id

-- name: find_batch_members_by_key
-- Find members of a batch by unique key, in any state.
-- The `+` keeps SQLite from the index of members: it would read all of them.
SELECT owner, kind, unique_key, id, payload FROM {p}job
WHERE unique_key IS NOT NULL AND substr(unique_key, 1, 200) IN (SELECT substr(value, 1, 200) FROM json_each(:keys))
  AND unique_key IN (SELECT value FROM json_each(:keys)) AND +batch_id = :batch_id
ORDER BY id DESC

-- name: delete_batch
-- Delete the definition of a batch.
DELETE FROM {p}batch WHERE id = :id RETURNING id
