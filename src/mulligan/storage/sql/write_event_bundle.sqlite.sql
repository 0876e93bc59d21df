-- Write a bundle of events.
-- sqlite_sequence holds the highest id ever used, so that ids of deleted events are not used again.
INSERT INTO {p}event (id, at, type, bundle, data)
VALUES ((SELECT COALESCE(max(seq), 0) FROM sqlite_sequence WHERE name = '{p}event') + :bundle, :at, :type, :bundle, :data)
