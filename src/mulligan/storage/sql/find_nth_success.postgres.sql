-- Find when the n-th newest success was.
SELECT finished_at FROM {p}job WHERE state = 'succeeded' AND finished_at IS NOT NULL
ORDER BY finished_at DESC LIMIT 1 OFFSET :n
