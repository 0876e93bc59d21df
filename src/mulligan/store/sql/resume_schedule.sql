-- From the moment it goes on; what came meanwhile was not missed. No row: it was not paused, or somebody was quicker.
UPDATE {p}schedule SET paused_at = NULL, paused_until = NULL, pause_reason = '', paused_by = '', cursor = :cursor
WHERE name = :name AND paused_at IS NOT NULL AND cursor = :seen RETURNING name
