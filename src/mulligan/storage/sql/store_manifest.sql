-- Store a manifest, or record that it is still in use.
INSERT INTO {p}manifest (id, app, release, body, created_at, last_used_at) VALUES (:id, :app, :release, :body, :now, :now)
ON CONFLICT (id) DO UPDATE SET last_used_at = excluded.last_used_at
