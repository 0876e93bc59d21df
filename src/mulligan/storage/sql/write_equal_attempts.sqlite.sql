-- Write the attempt rows after `settle_equal`. Runs in the same transaction.
-- `privates` maps job ids to the private part of the failure; the rest comes from the job's row.
INSERT INTO {p}attempt ({attempt})
SELECT job.id, :token, job.generation, job.attempt, :worker, :settled_by, job.started_at, :now, :ended, :verb, :code, :cls, :rule,
       :public, :evidence, private.value, :fingerprint, :run_at, :reason, :cost, :judged
FROM json_each(:privates) AS private CROSS JOIN {p}job AS job ON job.id = private.key AND job.token = :token
