-- The first due jobs of the lanes in `wanted`, at most :depth of each (lane, priority).
-- One range scan of job_for_claim per lane and priority: jobs that are due later are never read.
-- `since` skips the index entries of jobs that were claimed lately, which are many if jobs are short.
wanted CROSS JOIN LATERAL (
  SELECT job.priority, job.run_at, job.id, job.lane FROM {p}job AS job
  WHERE job.state = 'queued' AND job.lane = wanted.lane AND job.priority = CAST(wanted.priority AS integer)
    AND job.run_at >= wanted.since AND job.run_at <= {p}now_us() AND (job.deadline_at IS NULL OR job.deadline_at > {p}now_us())
  ORDER BY job.run_at, job.id LIMIT :depth
) AS due
