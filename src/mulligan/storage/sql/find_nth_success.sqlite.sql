-- Find when the n-th newest success was. INDEXED BY: in order of finished_at.
SELECT finished_at FROM {p}job INDEXED BY {p}job_for_retention
WHERE state = 'succeeded' AND finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT 1 OFFSET :n
