-- Insert a token bucket, unless there is one.
INSERT INTO {p}meter (scope, key, tokens, at) VALUES (:scope, :key, :tokens, :at) ON CONFLICT (scope, key) DO NOTHING
