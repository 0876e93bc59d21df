-- Sum statistics from a minute on, by name and labels.
SELECT name, labels, SUM(n), SUM(total) FROM {p}stat
WHERE minute >= :since AND name = ANY (CAST(:names AS text[])) GROUP BY name, labels
