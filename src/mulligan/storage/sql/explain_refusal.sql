-- Find out why a settlement matched no row.
-- `written`: this settlement is stored already; the worker sent it twice.
SELECT j.state, j.worker, j.token, j.cancel_reason,
       EXISTS (SELECT 1 FROM {p}attempt AS a WHERE a.job_id = :id AND a.token = :token AND a.settled_by = :settled_by)
         OR (:token = 1 AND j.succeeded_by IS NOT NULL AND j.succeeded_by = :settled_by) AS written
FROM {p}job AS j WHERE j.id = :id
