-- Sum statistics from a minute on, by name and labels.
SELECT name, labels, SUM(n), SUM(total) FROM {p}stat
WHERE minute >= :since AND name IN (SELECT value FROM json_each(:names)) GROUP BY name, labels
