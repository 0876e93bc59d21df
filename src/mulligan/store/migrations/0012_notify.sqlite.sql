-- Who reads the events, and how far. Who holds the row is at it; nobody waits for it.
CREATE TABLE {p}reader (
  name       TEXT PRIMARY KEY,
  cursor     INTEGER NOT NULL,
  body       TEXT NOT NULL DEFAULT '',
  updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
