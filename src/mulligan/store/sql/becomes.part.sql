-- A row of a job that waited becomes that of a lease. The clock is asked once for all of them.
state = 'running', worker = :worker, token = token + 1, attempt = attempt + 1,
started_at = (SELECT {p}now_us()), first_started_at = COALESCE(first_started_at, (SELECT {p}now_us())), announced = true,
progress = NULL, progress_message = '',
unique_hash = CASE WHEN strpos(unique_cover, 'running') = 0 THEN NULL ELSE unique_hash END
