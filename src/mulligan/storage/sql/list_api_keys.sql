-- List all API keys, oldest first.
SELECT {api_key} FROM {p}api_key ORDER BY created_at, id
