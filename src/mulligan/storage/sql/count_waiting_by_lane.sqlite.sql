-- Count the queued jobs of every lane: due now, and due later. Counting stops at the cap.
WITH RECURSIVE found (lane, priority, run_at) AS (
  SELECT * FROM (SELECT lane, priority, run_at FROM {p}job WHERE state = 'queued' ORDER BY lane, priority, run_at LIMIT 1)
  UNION ALL
  SELECT nxt.lane, nxt.priority, nxt.run_at
  FROM found JOIN {p}job AS nxt ON nxt.rowid = COALESCE(
    (SELECT rowid FROM {p}job WHERE state = 'queued' AND lane = found.lane AND priority > found.priority
     ORDER BY priority, run_at LIMIT 1),
    (SELECT rowid FROM {p}job WHERE state = 'queued' AND lane > found.lane ORDER BY lane, priority, run_at LIMIT 1)
  )
)
SELECT lane, run_at,
  (SELECT count(*) FROM (SELECT 1 FROM {p}job AS due WHERE due.state = 'queued' AND due.lane = found.lane
                         AND due.priority = found.priority AND due.run_at <= :at_time LIMIT :cap)),
  (SELECT count(*) FROM (SELECT 1 FROM {p}job AS later WHERE later.state = 'queued' AND later.lane = found.lane
                         AND later.priority = found.priority AND later.run_at > :at_time LIMIT :cap))
FROM found LIMIT :limit
