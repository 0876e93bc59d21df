SELECT count(*) FROM (SELECT 1 FROM {p}job WHERE state = :state AND kind NOT LIKE 'mulligan.%' LIMIT :cap) AS few
