-- Read jobs in order of id, for `doctor --verify`.
SELECT {job}, announced, unique_until, must_have FROM {p}job WHERE id > :after ORDER BY id LIMIT :limit
