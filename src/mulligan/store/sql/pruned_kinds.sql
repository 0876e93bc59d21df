SELECT kind, max(at) FROM {p}pruned GROUP BY kind
