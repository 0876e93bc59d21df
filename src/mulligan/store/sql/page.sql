SELECT {row} FROM {p}job
WHERE {matching} AND (CAST(:before AS TEXT) IS NULL OR id < :before)
ORDER BY id DESC LIMIT :most
