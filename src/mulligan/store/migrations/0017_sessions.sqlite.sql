-- Who is signed in to the dashboard, and links that sign somebody in once. Of both only a hash is kept.
CREATE TABLE {p}session (
  hash       TEXT PRIMARY KEY,
  is_link    INTEGER NOT NULL,
  key_id     TEXT,
  scope      TEXT NOT NULL CHECK (scope <> ''),
  role       TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX {p}session_for_retention ON {p}session (expires_at);
