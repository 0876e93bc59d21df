-- Find members of a batch by unique key, in any state.
-- `|| ''` keeps the planner from the index of members: it would read all of them.
SELECT owner, kind, unique_key, id, payload FROM {p}job
WHERE unique_key IS NOT NULL AND unique_key COLLATE "C" = ANY (CAST(:keys AS text[])) AND batch_id || '' = :batch_id
ORDER BY id DESC
