-- Delete old slots of schedules.
DELETE FROM {p}slot WHERE (schedule, slot) IN (
  SELECT schedule, slot FROM {p}slot WHERE slot < :before ORDER BY slot LIMIT :limit) RETURNING slot
