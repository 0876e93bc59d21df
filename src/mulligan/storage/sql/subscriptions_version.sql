-- Compute a value that changes with every change of a subscription, to validate a cache.
-- A new subscription adds its created_at, and every update raises a version.
SELECT count(*), CAST(coalesce(sum(version), 0) AS BIGINT), CAST(coalesce(sum(created_at % 1000000007), 0) AS BIGINT)
FROM {p}subscription
