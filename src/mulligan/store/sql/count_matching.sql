SELECT count(*) FROM (SELECT 1 FROM {p}job WHERE {part:matching} LIMIT :cap) AS few
