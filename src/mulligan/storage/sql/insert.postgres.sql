-- Insert jobs with their job.queued events, and notify each queue once.
-- A job whose unique key is held returns no row; the caller then looks up the holder.
WITH {part:inserted}
SELECT id, run_at, created_at, (SELECT count(*) FROM hinted), (SELECT n FROM told) FROM fresh LIMIT CAST(:answers AS bigint)
