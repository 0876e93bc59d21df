-- Where none of them is old enough, no young ones are read.
SELECT id, at FROM {p}event WHERE id > :floor ORDER BY id LIMIT :most
