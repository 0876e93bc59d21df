-- Find the start of the oldest message count.
SELECT min(since) FROM {p}notified
