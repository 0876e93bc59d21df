-- List the next due jobs of lanes. Nothing is locked: the claim locks and checks again.
WITH wanted AS (
  SELECT lane, priority, 0 AS since
  FROM unnest(CAST(:lanes AS text[]), CAST(:priorities AS bigint[])) AS listed(lane, priority)
)
SELECT due.priority, due.run_at, due.id, due.lane FROM {part:due_jobs}
