SELECT 1 FROM {p}reader WHERE name = :name
