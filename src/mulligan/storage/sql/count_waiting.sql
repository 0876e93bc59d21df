-- Count the queued jobs of one lane: due now, and due later. Counting stops at the cap.
SELECT (SELECT count(*) FROM (SELECT 1 FROM {p}job WHERE state = 'queued' AND lane = :lane AND priority = :priority
                              AND run_at <= :at_time LIMIT :cap) AS due),
       (SELECT count(*) FROM (SELECT 1 FROM {p}job WHERE state = 'queued' AND lane = :lane AND priority = :priority
                              AND run_at > :at_time LIMIT :cap) AS later)
