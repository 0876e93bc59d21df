-- List the leases of one worker.
SELECT {lease} FROM {p}job WHERE state = 'running' AND worker = :worker
