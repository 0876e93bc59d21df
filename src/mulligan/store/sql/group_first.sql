SELECT finished_at FROM {p}job WHERE {matching} ORDER BY finished_at LIMIT 1
