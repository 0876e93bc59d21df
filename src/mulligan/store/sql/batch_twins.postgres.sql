-- Members by their unique key, in whatever state.
SELECT kind, unique_key, min(id) FROM {p}job
WHERE batch_id = :batch_id AND unique_key = ANY (CAST(:keys AS text[])) GROUP BY kind, unique_key
