-- List the next due jobs of several lanes, in claim order.
-- One range scan per lane and priority. Nothing is locked: `claim_jobs` locks and checks again.
SELECT c.priority, c.run_at, c.id, c.lane
FROM unnest(CAST(:lanes AS text[]), CAST(:priorities AS bigint[])) AS open_lane(lane, priority)
CROSS JOIN LATERAL (
  SELECT j.priority, j.run_at, j.id, j.lane FROM {p}job AS j
  WHERE j.state = 'queued' AND j.lane = open_lane.lane AND j.priority = CAST(open_lane.priority AS integer)
    AND j.run_at <= {p}now_us() AND (j.deadline_at IS NULL OR j.deadline_at > {p}now_us())
  ORDER BY j.run_at, j.id LIMIT :each
) AS c
ORDER BY c.priority, c.run_at, c.id LIMIT :limit
