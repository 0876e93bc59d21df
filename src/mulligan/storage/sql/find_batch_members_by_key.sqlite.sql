-- Find members of a batch by unique key, in any state.
-- The `+` keeps SQLite from the index of members: it would read all of them.
SELECT owner, kind, unique_key, id, payload FROM {p}job
WHERE unique_key IS NOT NULL AND unique_key IN (SELECT value FROM json_each(:keys)) AND +batch_id = :batch_id
ORDER BY id DESC
