DELETE FROM {p}pruned WHERE at < :before
