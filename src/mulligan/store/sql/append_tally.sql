INSERT INTO {p}tally (scope, key, body) VALUES (:scope, :key, :body)
