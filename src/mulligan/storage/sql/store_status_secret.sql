-- Store the secret that signs status links, unless there is one.
INSERT INTO {p}meta (key, value) VALUES ('status_secret', :value) ON CONFLICT (key) DO NOTHING
