-- Find records of retention whose range of ids contains this job id.
SELECT kind, first_id, last_id FROM {p}pruned WHERE first_id <= :id AND last_id >= :id
