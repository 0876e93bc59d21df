-- Where the newest :jobs jobs and the newest :attempts attempts begin; NULL: there are not so many.
SELECT (SELECT id FROM {p}job WHERE id > :low ORDER BY id DESC LIMIT 1 OFFSET :jobs),
       (SELECT job_id FROM {p}attempt WHERE job_id > :low ORDER BY job_id DESC, token DESC LIMIT 1 OFFSET :attempts)
