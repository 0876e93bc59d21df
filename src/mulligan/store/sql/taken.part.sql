-- What all that take have in common: what is locked becomes leases, with their events. A locked row stays
-- where it is, so it is found by its place.
taken AS (
  UPDATE {p}job SET state = 'running', worker = :worker, token = token + 1, attempt = attempt + 1,
    started_at = {p}now_us(), first_started_at = COALESCE(first_started_at, {p}now_us()), announced = true,
    progress = NULL, progress_message = '',
    unique_hash = CASE WHEN strpos(unique_cover, 'running') = 0 THEN NULL ELSE unique_hash END
  WHERE ctid = ANY (ARRAY(SELECT locked_at FROM locked))
  RETURNING {lease}
), leased AS MATERIALIZED (
  SELECT * FROM taken JOIN locked ON locked_id = id ORDER BY place
), news AS (
  {part:queued}
  FROM leased WHERE NOT was_told
  UNION ALL
  SELECT started_at, 'job.started', id, batch_id, owner, attempt, token, '{"worker":"' || worker || '"}' FROM leased
), {part:told}
