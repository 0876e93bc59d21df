INSERT INTO {p}meta (key, value) VALUES ('status_secret', :value) ON CONFLICT (key) DO NOTHING
