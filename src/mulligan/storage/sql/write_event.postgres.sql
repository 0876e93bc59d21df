-- Write one event.
-- mark_events must run before the id is drawn, so that readers wait for the commit.
WITH mark AS MATERIALIZED (SELECT {p}mark_events() AS marked)
INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, actor, data)
SELECT {p}now_us(), :type, :job_id, :batch_id, :owner, CAST(:attempt AS integer), CAST(:token AS bigint), :actor, :data
FROM mark
