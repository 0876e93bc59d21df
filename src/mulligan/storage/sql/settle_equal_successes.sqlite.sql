-- Settle attempts that returned the same result under the same token, in one statement.
-- The `+` keeps SQLite from the index of running jobs.
UPDATE {p}job SET state = 'succeeded', worker = NULL, result = :result, reason = 'returned', finished_at = :now,
  succeeded_by = CASE token WHEN 1 THEN :worker END
WHERE id IN (SELECT value FROM json_each(:ids))
  AND +worker = :worker AND token = :token AND state = 'running' AND cancel_reason IS NULL
