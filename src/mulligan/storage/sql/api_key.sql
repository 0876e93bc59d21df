-- Read one API key.
SELECT {key} FROM {p}api_key WHERE id = :id
