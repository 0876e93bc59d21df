INSERT INTO {p}stat AS known ({stat}) VALUES (:minute, :name, :labels, :n, :total)
ON CONFLICT (minute, name, labels) DO UPDATE SET n = n + excluded.n, total = total + excluded.total
