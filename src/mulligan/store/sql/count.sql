SELECT count(*) FROM (SELECT 1 FROM {p}job WHERE state = :state LIMIT :cap) AS few
