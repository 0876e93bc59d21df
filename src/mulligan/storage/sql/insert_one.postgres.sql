-- Insert one job like `insert`. The notification is part of the result, so nothing is aggregated.
WITH {part:inserted}
SELECT id, run_at, created_at,
       CASE WHEN run_at <= created_at AND CAST(:channel AS text) IS NOT NULL
            THEN pg_notify(CAST(:channel AS text), queue) END
FROM fresh
