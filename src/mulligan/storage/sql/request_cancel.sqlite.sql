-- Request that a running job be cancelled.
UPDATE {p}job SET cancel_reason = :reason
WHERE id = :id AND token = :token AND state = 'running' AND cancel_reason IS NULL RETURNING id
