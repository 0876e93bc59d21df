-- Add to statistics. Sorted by key, so that two writers lock rows in the same order.
INSERT INTO {p}stat AS known ({stat})
SELECT {stat} FROM {set:stat} ORDER BY minute, name COLLATE "C", labels COLLATE "C"
ON CONFLICT (minute, name, labels) DO UPDATE SET n = known.n + excluded.n, total = known.total + excluded.total
