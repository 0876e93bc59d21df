-- Statements about insight: counts of the newest outcomes, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: insight_jobs
-- Count jobs by day, state and class, and those that succeeded with their first attempt.
SELECT created_at / 86400000000 AS day, state, COALESCE(CAST(error AS json) ->> 'class', '') AS cls, count(*),
       count(CASE WHEN {part:first_attempt_succeeded} THEN 1 END)
FROM ({part:cohort}) AS cohort GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
