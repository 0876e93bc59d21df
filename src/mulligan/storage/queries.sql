-- Statements of storage itself. See storage/statements.py for the macros.

-- name: now
-- Read the clock.
SELECT :now
