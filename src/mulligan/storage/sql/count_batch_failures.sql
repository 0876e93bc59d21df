-- Count the dead members of a batch by code, with the newest job of each code.
SELECT died_code, count(*), max(id) FROM {p}job WHERE batch_id = :id AND state = 'dead'
GROUP BY died_code ORDER BY 2 DESC, 1 LIMIT :limit
