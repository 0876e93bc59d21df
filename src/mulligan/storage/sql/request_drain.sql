-- Ask a worker to finish its jobs and exit.
UPDATE {p}worker SET drain_reason = :reason WHERE id = :id AND closed_at IS NULL RETURNING id
