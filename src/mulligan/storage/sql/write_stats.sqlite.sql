-- Add to the statistics of a minute.
INSERT INTO {p}stat AS known ({stat}) VALUES (:minute, :name, :labels, :n, :total)
ON CONFLICT (minute, name, labels) DO UPDATE SET n = known.n + excluded.n, total = known.total + excluded.total
