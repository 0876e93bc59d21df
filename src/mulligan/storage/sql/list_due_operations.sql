-- List operations that are due to continue.
-- A due time far in the future comes from a clock that was set back; it counts as due.
SELECT id FROM {p}operation
WHERE active AND (due_at <= CAST(:at_time AS BIGINT) OR due_at > CAST(:upper AS BIGINT)) ORDER BY due_at LIMIT :limit
