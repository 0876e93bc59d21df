-- Another one whenever anything about them has changed: who comes has a time of its own, a version only grows.
SELECT count(*), CAST(coalesce(sum(version), 0) AS BIGINT), CAST(coalesce(sum(created_at % 1000000007), 0) AS BIGINT)
FROM {p}subscription
