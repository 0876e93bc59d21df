INSERT INTO {p}guard ({guard}) VALUES (:scope, :key, 0, false, '') ON CONFLICT (scope, key) DO NOTHING
