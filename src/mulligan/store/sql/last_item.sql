SELECT place, job_id FROM {p}operation_item WHERE operation = :operation ORDER BY place DESC LIMIT 1
