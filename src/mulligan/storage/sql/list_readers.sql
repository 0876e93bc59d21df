-- List the consumers of the event log.
SELECT {reader} FROM {p}reader ORDER BY name
