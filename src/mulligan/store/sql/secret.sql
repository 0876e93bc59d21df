SELECT value FROM {p}meta WHERE key = 'status_secret'
