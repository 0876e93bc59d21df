-- Close a worker's row. `seen`: only if the worker has not renewed since.
UPDATE {p}worker SET closed_at = :now, close_reason = :reason
WHERE id = :id AND closed_at IS NULL AND (CAST(:seen AS BIGINT) IS NULL OR renewed_at = :seen) RETURNING id
