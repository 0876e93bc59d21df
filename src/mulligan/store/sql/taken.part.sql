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
), mark AS MATERIALIZED (
  SELECT {p}mark_events() AS seen
), told AS (
  INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, data)
  SELECT at, type, id, batch_id, owner, attempt, token, data FROM (
    SELECT created_at AS at, 'job.queued' AS type, id, batch_id, owner, NULL AS attempt, NULL AS token,
           CAST(json_build_object('kind', kind, 'queue', queue, 'run_at', run_at) AS text) AS data
    FROM leased WHERE NOT was_told
    UNION ALL
    SELECT started_at, 'job.started', id, batch_id, owner, attempt, token,
           '{"worker":"' || worker || '"}' FROM leased
  ) AS news CROSS JOIN mark
)
