UPDATE {p}job SET announced = 1 WHERE id IN (SELECT id FROM {p}job WHERE NOT announced ORDER BY id LIMIT :most)
RETURNING id, batch_id, owner, kind, queue, run_at, created_at
