-- Test whether a worker is open, so that it may claim.
SELECT 1 FROM {p}worker WHERE id = :worker AND closed_at IS NULL
