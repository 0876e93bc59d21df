UPDATE {p}job SET announced = true WHERE id = ANY(CAST(:ids AS text[]))
