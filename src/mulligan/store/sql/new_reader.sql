INSERT INTO {p}reader (name, cursor, body, updated_at) VALUES (:name, :cursor, '', :now) ON CONFLICT (name) DO NOTHING
