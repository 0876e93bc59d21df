-- queued → running, for a row that was just seen in this very transaction.
UPDATE {p}job SET state = 'running', worker = :worker, token = token + 1, attempt = attempt + 1,
  started_at = :now, first_started_at = COALESCE(first_started_at, :now), progress = NULL, progress_message = '',
  unique_hash = CASE WHEN instr(unique_cover, 'running') = 0 THEN NULL ELSE unique_hash END
WHERE rowid = :place
