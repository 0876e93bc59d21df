-- List workers.
SELECT {worker} FROM {p}worker WHERE :closed OR closed_at IS NULL ORDER BY started_at, id
