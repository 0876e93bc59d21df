-- Test whether a job ever died with this fingerprint, among the newest.
SELECT 1 FROM (
  SELECT job_id FROM {p}attempt WHERE fingerprint = :fingerprint AND verb = 'die' ORDER BY job_id DESC LIMIT :limit
) AS died
JOIN {p}job AS job ON job.id = died.job_id
WHERE (CAST(:owner AS TEXT) IS NULL OR job.owner = :owner) LIMIT 1
