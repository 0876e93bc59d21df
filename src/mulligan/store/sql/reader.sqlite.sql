SELECT {reader} FROM {p}reader WHERE name = :name
