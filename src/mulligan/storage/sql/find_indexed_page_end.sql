-- Find the id at which a page of jobs with an indexed argument ends, and the id after it.
SELECT job_id FROM {p}job_arg
WHERE name = :indexed_0_name AND value = :indexed_0_value AND job_id < :before AND job_id >= :low
ORDER BY job_id DESC LIMIT 2 OFFSET :skip
