SELECT {operation} FROM {p}operation WHERE id = :id
