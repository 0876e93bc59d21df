-- Lock and read the position of a consumer of the event log until its work is committed.
-- SKIP LOCKED: only one worker consumes at a time; the others do not wait.
-- The idle timeout frees the lock if that worker hangs.
SELECT {reader}, set_config('idle_in_transaction_session_timeout', '10s', true)
FROM {p}reader WHERE name = :name FOR UPDATE SKIP LOCKED
