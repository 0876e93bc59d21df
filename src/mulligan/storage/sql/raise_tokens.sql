-- Raise the fencing tokens of all jobs after a restore, so that older attempts are refused.
UPDATE {p}job SET token = token + :by RETURNING 1
