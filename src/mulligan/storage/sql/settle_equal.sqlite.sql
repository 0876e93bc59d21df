-- Settle attempts that share one decision and token, in one statement with the fence of `settle`.
UPDATE {p}job SET
  {part:settle_assignments}
WHERE id IN (SELECT value FROM json_each(:ids))
  AND +worker = :worker AND token = :token AND state = 'running' AND (cancel_reason IS NULL OR :cancel_known)
