-- After `retry_alike`, in the same transaction: the row knows what else is of each attempt alone, and `own` its words, by id.
INSERT INTO {p}attempt ({attempt})
SELECT job.id, :token, job.generation, job.attempt, :worker, :settled_by, job.started_at, :now, :ended, :verb, :code, :cls, :rule,
       :public, :evidence, :before || own.value || :between || own.value || :after, :fingerprint, :run_at, :reason, 0.0, :judged
FROM json_each(:own) AS own CROSS JOIN {p}job AS job ON job.id = own.key AND job.token = :token
