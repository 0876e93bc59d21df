-- Lock and read a token bucket until the claim is committed, so that claims count each other.
-- SKIP LOCKED: a locked bucket counts as empty for now. The idle timeout frees the lock if a worker
-- hangs.
SELECT tokens, at, {p}now_us(), set_config('idle_in_transaction_session_timeout', '10s', true)
FROM {p}meter WHERE scope = :scope AND key = :key FOR UPDATE SKIP LOCKED
