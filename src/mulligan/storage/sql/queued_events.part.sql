-- Select the job.queued events of jobs.
SELECT created_at AS at, 'job.queued' AS type, id AS job_id, batch_id, owner, NULL::bigint AS attempt, NULL::bigint AS token,
  CAST(json_build_object('kind', kind, 'queue', queue, 'run_at', run_at) AS text) AS data
