-- Count the queued jobs of every lane: due now, and due later. Counting stops at the cap.
WITH RECURSIVE {part:lanes_with_jobs}
SELECT lane, run_at,
  (SELECT count(*) FROM (SELECT 1 FROM {p}job AS due WHERE due.state = 'queued' AND due.lane = found.lane
                         AND due.priority = found.priority AND due.run_at <= :at_time LIMIT :cap) AS few),
  (SELECT count(*) FROM (SELECT 1 FROM {p}job AS later WHERE later.state = 'queued' AND later.lane = found.lane
                         AND later.priority = found.priority AND later.run_at > :at_time LIMIT :cap) AS few)
FROM found LIMIT :limit
