-- The same among those that an argument finds.
SELECT job_id FROM {p}job_arg
WHERE name = :indexed_0_name AND value = :indexed_0_value AND job_id < :before AND job_id >= :low
ORDER BY job_id DESC LIMIT 2 OFFSET :skip
