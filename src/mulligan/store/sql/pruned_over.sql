SELECT kind, first_id, last_id FROM {p}pruned WHERE first_id <= :id AND last_id >= :id
