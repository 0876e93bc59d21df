SELECT min(since) FROM {p}notified
