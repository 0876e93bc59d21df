-- Count jobs that began to match the filter of an operation after it started.
SELECT count(*) FROM (
  SELECT id FROM {p}job
  WHERE {matching} AND id > :after AND (finished_at IS NULL OR finished_at > CAST(:began AS BIGINT)) LIMIT :examined
) AS found
WHERE NOT EXISTS (
  SELECT 1 FROM {p}operation_item AS item WHERE item.operation = :operation AND item.job_id = found.id)
