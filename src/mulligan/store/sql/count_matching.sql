SELECT count(*) FROM (SELECT 1 FROM {p}job WHERE {matching} LIMIT :cap) AS few
