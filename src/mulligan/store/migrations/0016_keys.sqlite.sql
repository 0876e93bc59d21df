-- Who may ask over HTTP. Of a key only a hash is kept; scope: one owner, or '*'.
CREATE TABLE {p}api_key (
  id           TEXT PRIMARY KEY,
  hash         TEXT NOT NULL,
  name         TEXT NOT NULL DEFAULT '',
  scope        TEXT NOT NULL CHECK (scope <> ''),
  role         TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  created_at   INTEGER NOT NULL,
  created_by   TEXT NOT NULL DEFAULT '',
  expires_at   INTEGER,
  last_used_at INTEGER,
  revoked_at   INTEGER
) STRICT, WITHOUT ROWID;

-- What was answered to a request that named itself, so that asked again it is not done again.
CREATE TABLE {p}answer (
  key_id  TEXT NOT NULL,
  name    TEXT NOT NULL,
  request TEXT NOT NULL,
  at      INTEGER NOT NULL,
  status  INTEGER,
  body    TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (key_id, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX {p}answer_for_retention ON {p}answer (at);
