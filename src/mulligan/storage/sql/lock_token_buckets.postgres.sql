-- Lock and read token buckets until the claim is committed, so that claims count each other.
-- SKIP LOCKED: a locked bucket counts as empty for now. The idle timeout frees the lock if a worker
-- hangs.
SELECT scope, key, tokens, at, {p}now_us(), set_config('idle_in_transaction_session_timeout', '10s', true)
FROM {p}meter WHERE (scope, key) IN (SELECT * FROM unnest(CAST(:scopes AS text[]), CAST(:keys AS text[])))
ORDER BY scope, key FOR UPDATE SKIP LOCKED
