-- Find when the next open incident is due.
SELECT min(due_at) FROM {p}incident WHERE closed_at IS NULL
