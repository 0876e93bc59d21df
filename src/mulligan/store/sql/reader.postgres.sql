-- Locked until what was read is written. Nobody waits: who finds it in another hand passes by. And nobody keeps it: the
-- server ends a transaction that is idle for too long.
SELECT {reader}, set_config('idle_in_transaction_session_timeout', '10s', true)
FROM {p}reader WHERE name = :name FOR UPDATE SKIP LOCKED
