WITH silent AS MATERIALIZED (
  SELECT id AS silent_id FROM {p}job WHERE NOT announced ORDER BY id LIMIT :most FOR UPDATE SKIP LOCKED
), heard AS (
  UPDATE {p}job SET announced = true FROM silent WHERE id = silent_id
  RETURNING id, batch_id, owner, kind, queue, run_at, created_at
), mark AS MATERIALIZED (
  SELECT {p}mark_events() AS seen FROM (SELECT 1 FROM heard LIMIT 1) AS any_at_all
), told AS (
  INSERT INTO {p}event (at, type, job_id, batch_id, owner, data)
  SELECT created_at, 'job.queued', id, batch_id, owner,
         json_build_object('kind', kind, 'queue', queue, 'run_at', run_at)
  FROM heard CROSS JOIN mark
)
SELECT id FROM heard
