-- Insert the token buckets that do not exist. A new bucket is full: its last refill lies at time 0.
INSERT INTO {p}meter (scope, key, tokens, at)
SELECT scopes.value, keys.value, 0, 0 FROM json_each(:scopes) AS scopes JOIN json_each(:keys) AS keys ON keys.key = scopes.key
WHERE true
ON CONFLICT (scope, key) DO NOTHING RETURNING scope, key
