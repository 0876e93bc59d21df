-- Delete schedules that no manifest has declared for long.
DELETE FROM {p}schedule WHERE named_at < :before RETURNING name
