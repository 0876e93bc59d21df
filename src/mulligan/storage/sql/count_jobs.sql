-- Count jobs that match a filter within a range of ids, up to a cap.
SELECT count(*) FROM (
  SELECT 1 FROM {p}job WHERE {matching} AND id < :before AND id >= :floor LIMIT :cap
) AS few
