-- Find the ids at which the newest :jobs jobs and :attempts attempts begin. NULL: there are fewer.
SELECT (SELECT id FROM {p}job WHERE id > :low ORDER BY id DESC LIMIT 1 OFFSET :jobs),
       (SELECT job_id FROM {p}attempt WHERE job_id > :low ORDER BY job_id DESC, token DESC LIMIT 1 OFFSET :attempts)
