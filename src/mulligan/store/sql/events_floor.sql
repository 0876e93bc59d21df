-- Up to here only what people did is left.
SELECT value FROM {p}meta WHERE key = 'events_floor'
