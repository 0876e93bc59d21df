-- List the jobs of a worker that are to be cancelled.
SELECT id, token, cancel_reason FROM {p}job WHERE state = 'running' AND worker = :worker AND cancel_reason IS NOT NULL
