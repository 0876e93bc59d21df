-- Count the members of batches by state and by must_have.
SELECT batch_id, state, must_have, count(*) FROM {p}job
WHERE batch_id = ANY (CAST(:ids AS text[])) GROUP BY batch_id, state, must_have
