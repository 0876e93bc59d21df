SELECT 1 FROM {p}worker WHERE id = :worker AND closed_at IS NULL
