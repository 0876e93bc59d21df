-- queued → running. Candidates were chosen unlocked, so several workers may want the same rows: whoever holds
-- the lock wins, the others pass on to their next choice, and nobody waits. A closed worker takes nothing.
-- One lookup by id for each that is wanted, in their order, until there are enough: `state || ''` keeps the planner from
-- the index of the waiting, which it would read from end to end for every row when it believes that nothing waits.
WITH locked AS MATERIALIZED (
  SELECT i.place, job.locked_id, job.was_announced
  FROM {set:wanted}
  CROSS JOIN LATERAL (
    SELECT id AS locked_id, announced AS was_announced FROM {p}job
    WHERE id = i.id AND state || '' = 'queued' AND run_at <= {p}now_us()
      AND (deadline_at IS NULL OR deadline_at > {p}now_us())
    FOR UPDATE SKIP LOCKED
  ) AS job
  WHERE EXISTS (SELECT 1 FROM {p}worker AS me WHERE me.id = :worker AND me.closed_at IS NULL)
  ORDER BY i.place LIMIT :most
), taken AS (
  UPDATE {p}job SET state = 'running', worker = :worker, token = token + 1, attempt = attempt + 1,
    started_at = {p}now_us(), first_started_at = COALESCE(first_started_at, {p}now_us()), announced = true,
    progress = NULL, progress_message = '',
    unique_hash = CASE WHEN strpos(unique_cover, 'running') = 0 THEN NULL ELSE unique_hash END
  WHERE id = ANY (ARRAY(SELECT locked_id FROM locked))
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
    FROM leased WHERE NOT was_announced
    UNION ALL
    SELECT started_at, 'job.started', id, batch_id, owner, attempt, token,
           '{"worker":"' || worker || '"}' FROM leased
  ) AS news CROSS JOIN mark
)
SELECT {lease} FROM leased ORDER BY place
