-- Read the leases that `claim_jobs` will create from these jobs, if they are still queued and due.
{part:lease_after_claim}
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'queued' AND run_at <= :now
  AND (deadline_at IS NULL OR deadline_at > :now)
