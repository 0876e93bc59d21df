-- Test whether a consumer of the event log exists.
SELECT 1 FROM {p}reader WHERE name = :name
