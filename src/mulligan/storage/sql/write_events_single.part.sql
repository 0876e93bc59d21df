-- Write the one row of `events` to the event table.
-- The subquery runs mark_events before the id is drawn, so that readers wait for the commit.
inserted_events AS (
  INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, data)
  SELECT at, type, job_id, batch_id, owner, attempt, token, data
  FROM (SELECT events.*, {p}mark_events() AS mark FROM events) AS marked
  RETURNING 1
), logged AS (
  SELECT count(*) AS n FROM inserted_events
)
