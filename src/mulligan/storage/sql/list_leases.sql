-- List the leases of one worker.
SELECT {as_lease} FROM {p}job WHERE state = 'running' AND worker = :worker
