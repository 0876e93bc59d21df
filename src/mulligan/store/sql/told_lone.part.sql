mark AS MATERIALIZED (
  SELECT {p}mark_events() AS seen FROM (SELECT 1 FROM news LIMIT 1) AS any_at_all
), heard AS (
  INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, data)
  SELECT at, type, job_id, batch_id, owner, attempt, token, data FROM news CROSS JOIN mark RETURNING 1
), told AS (
  SELECT count(*) AS n FROM heard
)
