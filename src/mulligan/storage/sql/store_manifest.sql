-- Store a manifest, or record that it is still in use.
INSERT INTO {p}manifest (id, app, release, body, first_seen, last_named) VALUES (:id, :app, :release, :body, :now, :now)
ON CONFLICT (id) DO UPDATE SET last_named = excluded.last_named
