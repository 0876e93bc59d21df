-- List the attempts of one job in order.
SELECT {attempt} FROM {p}attempt WHERE job_id = :id
UNION ALL {part:first_attempt_row} AND id = :id
ORDER BY 2
