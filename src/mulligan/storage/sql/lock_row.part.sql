-- Lock the row of each ending `i` and read its ctid and the values that the fence compares.
CROSS JOIN LATERAL (
  SELECT ctid AS row_location, state AS was_state, worker AS was_worker, token AS was_token, cancel_reason IS NOT NULL AS cancel_requested
  FROM {p}job WHERE id = i.id FOR UPDATE
) AS job
