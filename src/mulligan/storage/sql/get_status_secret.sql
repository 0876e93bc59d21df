-- Read the secret that signs status links.
SELECT value FROM {p}meta WHERE key = 'status_secret'
