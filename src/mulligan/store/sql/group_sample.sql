SELECT {row} FROM {p}job WHERE {matching} ORDER BY finished_at DESC LIMIT 1
