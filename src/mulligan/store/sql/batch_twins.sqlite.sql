-- Members by their unique key, in whatever state: by the index of keys, never through all members (`+`).
SELECT owner, kind, unique_key, id, payload FROM {p}job
WHERE unique_key IS NOT NULL AND unique_key IN (SELECT value FROM json_each(:keys)) AND +batch_id = :batch_id
ORDER BY id DESC
