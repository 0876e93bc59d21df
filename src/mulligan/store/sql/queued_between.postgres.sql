-- Jobs of one kind and queue differ in when they are due: up to there their texts are the same.
SELECT min(at), 'job.queued', NULL, max(data), count(*) FROM {p}event
WHERE id > :cursor AND id <= :top AND bundle IS NULL AND type = 'job.queued'
GROUP BY at / 60000000, CASE WHEN strpos(data, '"run_at"') > 0 THEN left(data, strpos(data, '"run_at"')) ELSE data END
