-- The same for a single job: its hint is a part of the answer, and nothing must be gathered for it.
WITH {part:inserted}
SELECT id, run_at, created_at,
       CASE WHEN run_at <= created_at AND CAST(:channel AS text) IS NOT NULL
            THEN pg_notify(CAST(:channel AS text), queue) END
FROM fresh
