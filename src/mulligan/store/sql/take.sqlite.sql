-- queued → running, for rows that were just seen in this very transaction. One statement: the library lets other threads
-- run until it is done, and has nothing to ask us in between.
UPDATE {p}job SET state = 'running', worker = :worker, token = token + 1, attempt = attempt + 1,
  started_at = :now, first_started_at = COALESCE(first_started_at, :now), progress = NULL, progress_message = '',
  unique_hash = CASE WHEN instr(unique_cover, 'running') = 0 THEN NULL ELSE unique_hash END
WHERE rowid IN (SELECT value FROM json_each(:places))
