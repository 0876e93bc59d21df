-- Write the attempt rows after `settle_retries`, for attempts that started at the same time.
-- Runs in the same transaction. `messages` maps job ids to the messages of their exceptions.
INSERT INTO {p}attempt ({attempt})
SELECT message.key, :token, :generation, :attempt, :worker, :settled_by, :started_at, :now, :ended, :verb, :code, :cls, :rule, :public,
       :evidence, :private_head || message.value || :private_middle || message.value || :private_tail, :fingerprint, :run_at, :reason, 0.0, :judged
FROM json_each(:messages) AS message
