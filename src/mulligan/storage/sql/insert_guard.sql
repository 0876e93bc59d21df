-- Insert an empty guard, unless there is one.
INSERT INTO {p}guard ({guard}, updated_at) VALUES (:scope, :key, 0, false, '', :now) ON CONFLICT (scope, key) DO NOTHING
