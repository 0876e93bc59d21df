INSERT INTO {p}attempt ({attempt})
VALUES (:id, :token, :generation, :attempt, :worker, :started_at, :now, :ended, :verb, :code, :cls, :rule, :public,
        :evidence, :private, :fingerprint, :run_at, :reason, :cost)
