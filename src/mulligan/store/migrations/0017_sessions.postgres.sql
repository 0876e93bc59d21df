-- Who is signed in to the dashboard, and links that sign somebody in once. Of both only a hash is kept.
CREATE TABLE {p}session (
  hash       text COLLATE "C" PRIMARY KEY,
  is_link    boolean NOT NULL,
  key_id     text,
  scope      text NOT NULL CHECK (scope <> ''),
  role       text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  created_at bigint NOT NULL,
  expires_at bigint NOT NULL
);
CREATE INDEX session_for_retention ON {p}session (expires_at);
