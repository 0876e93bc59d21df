-- Write the attempt rows after `retry_alike`, for attempts that started at the same time.
-- Runs in the same transaction. `own` maps job ids to the part of the private text that differs.
INSERT INTO {p}attempt ({attempt})
SELECT own.key, :token, :generation, :attempt, :worker, :settled_by, :started_at, :now, :ended, :verb, :code, :cls, :rule, :public,
       :evidence, :before || own.value || :between || own.value || :after, :fingerprint, :run_at, :reason, 0.0, :judged
FROM json_each(:own) AS own
