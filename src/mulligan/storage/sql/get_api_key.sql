-- Read one API key.
SELECT {api_key} FROM {p}api_key WHERE id = :id
