-- Raise the id up to which retention has pruned events. It never goes down.
INSERT INTO {p}meta AS known (key, value) VALUES ('events_floor', :floor)
ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE CAST(known.value AS bigint) < CAST(excluded.value AS bigint)
