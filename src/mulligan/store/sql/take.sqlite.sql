-- queued → running, for one job that was just seen in this very transaction. A closed worker takes nothing.
UPDATE {p}job SET state = 'running', worker = :worker, token = token + 1, attempt = attempt + 1,
  started_at = :now, first_started_at = COALESCE(first_started_at, :now), progress = NULL, progress_message = '',
  unique_hash = CASE WHEN instr(unique_cover, 'running') = 0 THEN NULL ELSE unique_hash END
WHERE id = :id AND state = 'queued' AND run_at <= :now AND (deadline_at IS NULL OR deadline_at > :now)
  AND EXISTS (SELECT 1 FROM {p}worker WHERE id = :worker AND closed_at IS NULL)
RETURNING {lease}
