-- Store outcomes for a guard that another worker has locked.
INSERT INTO {p}tally (scope, key, body) VALUES (:scope, :key, :body)
