-- List the attempts of several jobs in order.
SELECT {attempt} FROM {p}attempt WHERE job_id IN (SELECT value FROM json_each(:ids))
UNION ALL {part:first_attempt_row} AND id IN (SELECT value FROM json_each(:ids))
ORDER BY 1, 2
