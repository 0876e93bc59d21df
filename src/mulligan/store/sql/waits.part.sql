-- A loose index scan over job_for_claim: one probe per (lane, priority) present, however many jobs there are.
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
