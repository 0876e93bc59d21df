-- Insert jobs with their job.queued events, and notify each queue once.
-- A job whose unique key is held returns no row; the caller then looks up the holder.
WITH {part:insert_and_announce}
SELECT id, run_at, created_at, (SELECT count(*) FROM notified), (SELECT n FROM logged) FROM fresh LIMIT CAST(:max_rows AS bigint)
