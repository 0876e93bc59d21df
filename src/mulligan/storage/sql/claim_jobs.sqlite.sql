-- Claim jobs that this transaction has just read: queued to running.
-- One statement, so that the library releases the GIL once and calls no Python code meanwhile.
UPDATE {p}job SET state = 'running', worker = :worker, token = token + 1, attempt = attempt + 1,
  started_at = :now, first_started_at = COALESCE(first_started_at, :now), progress = NULL, progress_message = '',
  unique_hash = CASE WHEN instr(unique_cover, 'running') = 0 THEN NULL ELSE unique_hash END
WHERE rowid IN (SELECT value FROM json_each(:places))
