-- List kinds of which retention removed jobs, with the last time.
SELECT kind, max(at) FROM {p}pruned GROUP BY kind
