-- → queued. One statement for one job or thousands: rows, their `job.queued` events, one hint per queue.
-- A row whose unique key is held is left out of the answer; the caller then looks for the holder.
WITH {part:inserted}
SELECT id, run_at, created_at, (SELECT count(*) FROM hinted), (SELECT n FROM told) FROM fresh LIMIT CAST(:answers AS bigint)
