SELECT count(*) FROM (
  SELECT 1 FROM {p}job WHERE {matching} AND id < :before AND id >= :floor LIMIT :cap
) AS few
