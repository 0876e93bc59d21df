-- queued → running. Candidates were chosen unlocked, so several workers may want the same rows: whoever holds
-- the lock wins, the others pass on to their next choice, and nobody waits. A closed worker takes nothing.
WITH wanted AS (
  SELECT id AS wanted_id, place FROM unnest(CAST(:ids AS text[])) WITH ORDINALITY AS w(id, place)
), locked AS MATERIALIZED (
  SELECT job.id AS locked_id, job.announced AS was_announced
  FROM {p}job AS job JOIN wanted ON wanted_id = job.id
  WHERE job.state = 'queued' AND job.run_at <= {p}now_us()
    AND (job.deadline_at IS NULL OR job.deadline_at > {p}now_us())
    AND EXISTS (SELECT 1 FROM {p}worker AS me WHERE me.id = :worker AND me.closed_at IS NULL)
  ORDER BY place LIMIT :most
  FOR UPDATE OF job SKIP LOCKED
), taken AS (
  UPDATE {p}job SET state = 'running', worker = :worker, token = token + 1, attempt = attempt + 1,
    started_at = {p}now_us(), first_started_at = COALESCE(first_started_at, {p}now_us()), announced = true
  FROM locked WHERE id = locked_id
  RETURNING {lease}, was_announced
), mark AS MATERIALIZED (
  SELECT {p}mark_events() AS seen
), told AS (
  INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, data)
  SELECT at, type, id, batch_id, owner, attempt, token, data FROM (
    SELECT created_at AS at, 'job.queued' AS type, id, batch_id, owner, NULL AS attempt, NULL AS token,
           CAST(json_build_object('kind', kind, 'queue', queue, 'run_at', run_at) AS text) AS data
    FROM taken WHERE NOT was_announced
    UNION ALL
    SELECT started_at, 'job.started', id, batch_id, owner, attempt, token,
           '{"worker":"' || worker || '"}' FROM taken
  ) AS news CROSS JOIN mark
)
SELECT {lease} FROM taken
