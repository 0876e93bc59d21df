-- Store how far a consumer has read the event log.
UPDATE {p}reader SET cursor = :cursor, body = :body, updated_at = :now WHERE name = :name
