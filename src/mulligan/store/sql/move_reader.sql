UPDATE {p}reader SET cursor = :cursor, body = :body, updated_at = :now WHERE name = :name
