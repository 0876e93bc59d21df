-- Count job.queued events by minute, kind and queue.
-- They differ only in run_at, so the text before it identifies kind and queue.
SELECT min(at), 'job.queued', NULL, max(data), count(*) FROM {p}event
WHERE id > :cursor AND id <= :top AND bundle IS NULL AND type = 'job.queued'
GROUP BY at / 60000000, CASE WHEN strpos(data, '"run_at"') > 0 THEN left(data, strpos(data, '"run_at"')) ELSE data END
