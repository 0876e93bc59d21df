-- Store the tokens that are left in locked buckets.
UPDATE {p}meter AS meter SET tokens = spent.tokens, at = spent.at
FROM unnest(CAST(:scopes AS text[]), CAST(:keys AS text[]), CAST(:tokens AS double precision[]), CAST(:times AS bigint[]))
  AS spent(scope, key, tokens, at)
WHERE meter.scope = spent.scope AND meter.key = spent.key
