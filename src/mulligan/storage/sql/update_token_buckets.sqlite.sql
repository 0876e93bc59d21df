-- Store the tokens that are left in buckets.
UPDATE {p}meter SET tokens = spent.tokens, at = spent.at
FROM (
  SELECT scopes.value AS scope, keys.value AS key, tokens.value AS tokens, times.value AS at
  FROM json_each(:scopes) AS scopes JOIN json_each(:keys) AS keys ON keys.key = scopes.key
  JOIN json_each(:tokens) AS tokens ON tokens.key = scopes.key JOIN json_each(:times) AS times ON times.key = scopes.key
) AS spent
WHERE {p}meter.scope = spent.scope AND {p}meter.key = spent.key
