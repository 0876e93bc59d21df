-- Insert the token buckets that do not exist. A new bucket is full: its last refill lies at time 0.
-- NOT EXISTS: ON CONFLICT alone would wait for a claim that is changing an existing bucket.
INSERT INTO {p}meter (scope, key, tokens, at)
SELECT scope, key, 0, 0 FROM unnest(CAST(:scopes AS text[]), CAST(:keys AS text[])) AS missing(scope, key)
WHERE NOT EXISTS (SELECT FROM {p}meter AS meter WHERE meter.scope = missing.scope AND meter.key = missing.key)
ORDER BY scope, key
ON CONFLICT (scope, key) DO NOTHING RETURNING scope, key
