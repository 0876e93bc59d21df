-- Ids are never given twice, also of what has left: the next one is the table's own memory.
INSERT INTO {p}event (id, at, type, bundle, data)
VALUES ((SELECT COALESCE(max(seq), 0) FROM sqlite_sequence WHERE name = '{p}event') + :bundle, :at, :type, :bundle, :data)
