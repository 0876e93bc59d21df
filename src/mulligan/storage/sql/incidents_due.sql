-- List open incidents that are due.
SELECT {incident} FROM {p}incident WHERE closed_at IS NULL AND due_at <= :moment ORDER BY due_at LIMIT :most
