-- Change the state of a job outside of an attempt: manual retry, cancel, release, deadline.
-- Compare-and-set on state, generation and token: of many requests at once, one succeeds.
UPDATE {p}job SET
  state = :state, run_at = COALESCE(:run_at, run_at), queue = COALESCE(:queue, queue),
  lane = COALESCE(substr(CAST(:lane AS TEXT), 1, length(CAST(:lane AS TEXT)) - 1), substr(lane, 1, length(lane) - 1))
         || COALESCE(CAST(:lane_suffix AS TEXT), substr(lane, length(lane))),
  reason = :reason, error = :error, choices = NULL,
  died_code = :died_code, died_class = :died_class, died_group = :died_group,
  choice = CASE WHEN :state = 'queued' THEN :choice ELSE choice END,
  generation = CASE WHEN :new_generation THEN generation + 1 ELSE generation END,
  attempt = CASE WHEN :new_generation THEN 0 ELSE attempt END,
  failures = CASE WHEN :new_generation THEN 0 ELSE failures END,
  losses = CASE WHEN :new_generation THEN 0 ELSE losses END,
  snoozes = CASE WHEN :new_generation THEN 0 ELSE snoozes END,
  counts = CASE WHEN :new_generation THEN NULL ELSE counts END,
  settings = CASE WHEN :new_generation THEN NULL ELSE settings END,
  first_started_at = CASE WHEN :new_generation THEN NULL ELSE first_started_at END,
  deadline_at = CASE WHEN :new_generation THEN :now + deadline_span ELSE deadline_at END,
  finished_at = CASE WHEN :finished THEN :now END,
  unique_hash = :unique_hash,
  cancel_reason = NULL,
  max_retries = COALESCE(:max_retries, max_retries), priority = COALESCE(:priority, priority),
  timeout = COALESCE(:timeout, timeout), policy = COALESCE(:policy, policy), payload = COALESCE(:payload, payload),
  uses = COALESCE(:uses, uses), unique_key = COALESCE(:unique_key, unique_key)
WHERE id = :id AND state = :from_state AND generation = :generation AND token = :token
RETURNING announced, kind, queue, owner, batch_id, run_at
