-- Write the attempt row of a settled attempt.
INSERT INTO {p}attempt ({attempt})
VALUES (:id, :token, :generation, :attempt, :worker, :settled_by, :started_at, :now, :ended, :verb, :code, :cls, :rule, :public,
        :evidence, :private, :fingerprint, :run_at, :reason, :cost, :judged)
