-- Delete workers that closed long ago and have no running job.
DELETE FROM {p}worker WHERE closed_at < :before
  AND NOT EXISTS (SELECT 1 FROM {p}job AS j WHERE j.state = 'running' AND j.worker = {p}worker.id) RETURNING id
