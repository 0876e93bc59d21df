-- Delete schedules that no manifest has declared for long.
DELETE FROM {p}schedule WHERE declared_at < :before RETURNING name
