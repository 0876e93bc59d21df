-- One event. Whoever writes it marks that first: what a subquery tells is known before the event draws its number.
heard AS (
  INSERT INTO {p}event (at, type, job_id, batch_id, owner, attempt, token, data)
  SELECT at, type, job_id, batch_id, owner, attempt, token, data
  FROM (SELECT news.*, {p}mark_events() AS seen FROM news) AS marked
  RETURNING 1
), told AS (
  SELECT count(*) AS n FROM heard
)
