-- List matching jobs that have a unique key but do not hold it any more.
SELECT id, owner, kind, unique_key, unique_cover FROM {p}job
WHERE {matching} AND unique_key IS NOT NULL AND unique_hash IS NULL LIMIT :limit
