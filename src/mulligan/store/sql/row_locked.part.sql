-- The row of each ending `i`, locked: where it lies, and what its fence is held against.
CROSS JOIN LATERAL (
  SELECT ctid AS place_of, state AS was_state, worker AS was_worker, token AS was_token, cancel_reason IS NOT NULL AS was_asked
  FROM {p}job WHERE id = i.id FOR UPDATE
) AS job
