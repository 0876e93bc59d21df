-- List every lane and priority that has queued jobs, with the first run_at.
-- A recursive query makes one index probe per lane and priority, however many jobs there are.
found AS (
  (SELECT lane, priority, run_at FROM {p}job WHERE state = 'queued' ORDER BY lane, priority, run_at LIMIT 1)
  UNION ALL
  SELECT nxt.lane, nxt.priority, nxt.run_at
  FROM found CROSS JOIN LATERAL (
    SELECT lane, priority, run_at FROM {p}job
    WHERE state = 'queued' AND (lane, priority) > (found.lane, found.priority)
    ORDER BY lane, priority, run_at LIMIT 1
  ) AS nxt
)
