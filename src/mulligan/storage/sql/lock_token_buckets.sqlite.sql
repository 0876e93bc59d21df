-- Read token buckets.
SELECT scope, key, tokens, at, :now FROM {p}meter
WHERE (scope, key) IN (
  SELECT scopes.value, keys.value FROM json_each(:scopes) AS scopes JOIN json_each(:keys) AS keys ON keys.key = scopes.key
)
