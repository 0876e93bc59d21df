-- Insert a schedule. The cursor starts at the present: no earlier slot counts as missed.
INSERT INTO {p}schedule (name, cron, timezone, cursor, declared_at) VALUES (:name, :cron, :timezone, :now, :now)
ON CONFLICT (name) DO NOTHING RETURNING {schedule}
