-- Settle an attempt that returned: running to succeeded, fenced like `settle`.
UPDATE {p}job SET state = 'succeeded', worker = NULL, result = :result, reason = 'returned', finished_at = :now,
  succeeded_by = CASE token WHEN 1 THEN :worker END
WHERE id = :id AND worker = :worker AND token = :token AND state = 'running' AND cancel_reason IS NULL
