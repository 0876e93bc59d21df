-- List open incidents that are due.
SELECT {incident} FROM {p}incident WHERE closed_at IS NULL AND due_at <= :at_time ORDER BY due_at LIMIT :limit
