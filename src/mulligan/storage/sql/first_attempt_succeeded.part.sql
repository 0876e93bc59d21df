-- Condition: the job succeeded with its first attempt, so it has no row in attempt.
(state = 'succeeded' AND (token = 1 OR succeeded_by IS NOT NULL))
