-- Locked until the claim is written, so that the next one counts what this one took. Nobody waits: a meter in somebody
-- else's hand is no room for now. And nobody keeps it: the server ends a transaction that is idle for too long.
SELECT tokens, at, {p}now_us(), set_config('idle_in_transaction_session_timeout', '10s', true)
FROM {p}meter WHERE scope = :scope AND key = :key FOR UPDATE SKIP LOCKED
