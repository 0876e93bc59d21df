-- Assignments that turn a queued job into a running one.
-- The subqueries make the server call the clock once per statement instead of once per row.
state = 'running', worker = :worker, token = token + 1, attempt = attempt + 1,
started_at = (SELECT {p}now_us()), first_started_at = COALESCE(first_started_at, (SELECT {p}now_us())), announced = true,
progress = NULL, progress_message = '',
unique_hash = CASE WHEN strpos(unique_cover, 'running') = 0 THEN NULL ELSE unique_hash END
