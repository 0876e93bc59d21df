-- A schedule begins when it is first seen: nothing before that was missed.
INSERT INTO {p}schedule (name, cron, timezone, cursor, named_at) VALUES (:name, :cron, :timezone, :now, :now)
ON CONFLICT (name) DO NOTHING RETURNING {schedule}
