-- Find the first job of an operation that was retried and has not ended.
SELECT job_id FROM {p}operation_item WHERE operation = :operation AND state = 'sent' ORDER BY place LIMIT 1
