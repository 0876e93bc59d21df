-- Find the last item of an operation.
SELECT place, job_id FROM {p}operation_item WHERE operation = :operation ORDER BY place DESC LIMIT 1
