-- After `retry_alike`, in the same transaction, for those that began at the same moment: `own` has the words of each, by id.
INSERT INTO {p}attempt ({attempt})
SELECT own.key, :token, :generation, :attempt, :worker, :settled_by, :started_at, :now, :ended, :verb, :code, :cls, :rule, :public,
       :evidence, :before || own.value || :between || own.value || :after, :fingerprint, :run_at, :reason, 0.0, :judged
FROM json_each(:own) AS own
