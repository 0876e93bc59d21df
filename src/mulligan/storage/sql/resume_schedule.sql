-- Resume a paused schedule at the given cursor; slots during the pause are not missed.
-- No row: it was not paused, or another process has resumed it.
UPDATE {p}schedule SET paused_at = NULL, paused_until = NULL, pause_reason = '', paused_by = '', cursor = :cursor
WHERE name = :name AND paused_at IS NOT NULL AND cursor = :from_cursor RETURNING name
