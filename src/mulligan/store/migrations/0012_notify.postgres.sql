-- Who reads the events, and how far. Who holds the row is at it; nobody waits for it.
CREATE TABLE {p}reader (
  name       TEXT COLLATE "C" PRIMARY KEY,
  cursor     BIGINT NOT NULL,
  body       TEXT NOT NULL DEFAULT '',
  updated_at BIGINT NOT NULL
);
