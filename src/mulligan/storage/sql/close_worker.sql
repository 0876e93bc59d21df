-- Close a worker's row. `last_renewed`: only if the worker has not renewed since.
UPDATE {p}worker SET closed_at = :now, close_reason = :reason
WHERE id = :id AND closed_at IS NULL AND (CAST(:last_renewed AS BIGINT) IS NULL OR renewed_at = :last_renewed) RETURNING id
