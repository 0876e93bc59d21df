SELECT 1 FROM {p}job WHERE state = 'succeeded' AND finished_at >= :since AND finished_at IS NOT NULL AND kind = :kind LIMIT 1
