UPDATE {p}job SET announced = 1 WHERE id IN (SELECT value FROM json_each(:ids))
