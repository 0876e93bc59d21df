-- `settle` for all that end in the same way and have the same token, as those have that fail alike.
UPDATE {p}job SET
  {part:settled}
WHERE id IN (SELECT value FROM json_each(:ids))
  AND +worker = :worker AND token = :token AND state = 'running' AND (cancel_reason IS NULL OR :saw_cancel)
