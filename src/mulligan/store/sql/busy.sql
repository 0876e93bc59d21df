SELECT worker, count(*) FROM {p}job WHERE state = 'running' GROUP BY worker
