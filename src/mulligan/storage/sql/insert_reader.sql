-- Insert a consumer of the event log, unless there is one.
INSERT INTO {p}reader (name, cursor, body, updated_at) VALUES (:name, :cursor, '', :now) ON CONFLICT (name) DO NOTHING
