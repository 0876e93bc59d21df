-- Add the statistics of an hour's minutes to its first minute.
INSERT INTO {p}stat AS known ({stat})
SELECT CAST(:hour AS bigint), name, labels, CAST(sum(n) AS bigint), sum(total) FROM {p}stat
WHERE minute > :hour AND minute < :upper GROUP BY name, labels
ON CONFLICT (minute, name, labels) DO UPDATE SET n = known.n + excluded.n, total = known.total + excluded.total
