-- Read the position of a consumer of the event log without locking it.
SELECT {reader} FROM {p}reader WHERE name = :name
