-- What was counted, by minute; after a day by hour. Minute 0: all of it since counting began, so that it only grows.
CREATE TABLE {p}stat (
  minute BIGINT NOT NULL,
  name   TEXT COLLATE "C" NOT NULL,
  labels TEXT COLLATE "C" NOT NULL,
  n      BIGINT NOT NULL,
  total  DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (minute, name, labels)
);
ALTER TABLE {p}stat SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);
