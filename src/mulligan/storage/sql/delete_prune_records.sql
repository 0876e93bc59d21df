-- Delete old records of what retention removed.
DELETE FROM {p}pruned WHERE at < :before
