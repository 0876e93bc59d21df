-- What was counted, by minute; after a day by hour. Minute 0: all of it since counting began, so that it only grows.
CREATE TABLE {p}stat (
  minute INTEGER NOT NULL,
  name   TEXT NOT NULL,
  labels TEXT NOT NULL,
  n      INTEGER NOT NULL,
  total  REAL NOT NULL,
  PRIMARY KEY (minute, name, labels)
) STRICT, WITHOUT ROWID;
