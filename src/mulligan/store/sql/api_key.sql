SELECT {key} FROM {p}api_key WHERE id = :id
