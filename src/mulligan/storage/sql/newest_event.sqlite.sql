-- Read the highest event id.
SELECT coalesce(max(id), 0) FROM {p}event
