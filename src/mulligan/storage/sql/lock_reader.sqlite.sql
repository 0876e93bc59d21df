-- Read the position of a consumer of the event log.
SELECT {reader} FROM {p}reader WHERE name = :name
