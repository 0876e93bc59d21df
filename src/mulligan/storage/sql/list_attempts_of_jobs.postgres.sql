-- List the attempts of several jobs in order.
SELECT {attempt} FROM {p}attempt WHERE job_id = ANY (CAST(:ids AS text[]))
UNION ALL {part:first_attempt_row} AND id = ANY (CAST(:ids AS text[]))
ORDER BY 1, 2
