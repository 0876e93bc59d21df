-- Statements about API keys, stored responses and sessions, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: lock_idempotency_key
-- Lock an idempotency key until the transaction ends, without waiting.
SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 0))
