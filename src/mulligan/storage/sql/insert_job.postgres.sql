-- Insert one job like `insert_jobs`. The notification is in the result, not aggregated.
WITH {part:insert_and_announce}
SELECT id, run_at, created_at,
       CASE WHEN run_at <= created_at AND CAST(:channel AS text) IS NOT NULL
            THEN pg_notify(CAST(:channel AS text), queue) END
FROM fresh
