-- Who may ask over HTTP. Of a key only a hash is kept; scope: one owner, or '*'.
CREATE TABLE {p}api_key (
  id           TEXT COLLATE "C" PRIMARY KEY,
  hash         TEXT NOT NULL,
  name         TEXT NOT NULL DEFAULT '',
  scope        TEXT NOT NULL CHECK (scope <> ''),
  role         TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  created_at   BIGINT NOT NULL,
  created_by   TEXT NOT NULL DEFAULT '',
  expires_at   BIGINT,
  last_used_at BIGINT,
  revoked_at   BIGINT
);

-- What was answered to a request that named itself, so that asked again it is not done again.
CREATE TABLE {p}answer (
  key_id  TEXT COLLATE "C" NOT NULL,
  name    TEXT COLLATE "C" NOT NULL,
  request TEXT NOT NULL,
  at      BIGINT NOT NULL,
  status  INTEGER,
  body    TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (key_id, name)
);
CREATE INDEX answer_for_retention ON {p}answer (at);
