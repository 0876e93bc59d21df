-- Write the one row of `news` as an event.
-- The subquery runs mark_events before the id is drawn, so that readers wait for the commit.
heard AS (
  INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, data)
  SELECT at, type, job_id, batch_id, owner, attempt, token, data
  FROM (SELECT news.*, {p}mark_events() AS seen FROM news) AS marked
  RETURNING 1
), told AS (
  SELECT count(*) AS n FROM heard
)
