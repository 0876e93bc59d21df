-- Read the members of a batch that are in the given states.
SELECT {job} FROM {p}job
WHERE batch_id = :id AND state IN (SELECT value FROM json_each(:states)) ORDER BY id
