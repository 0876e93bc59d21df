-- Members by their unique key, in whatever state: by the index of keys, never through all members (`|| ''`).
SELECT kind, unique_key, min(id) FROM {p}job
WHERE unique_key IS NOT NULL AND unique_key COLLATE "C" = ANY (CAST(:keys AS text[])) AND batch_id || '' = :batch_id
GROUP BY kind, unique_key
