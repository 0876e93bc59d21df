-- A time that lies far ahead is of a clock that was set back.
SELECT id FROM {p}operation
WHERE active AND (due_at <= CAST(:moment AS BIGINT) OR due_at > CAST(:beyond AS BIGINT)) ORDER BY due_at LIMIT :most
