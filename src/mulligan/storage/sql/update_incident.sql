-- Store an incident.
UPDATE {p}incident SET body = :body, due_at = :due_at, closed_at = :closed_at WHERE id = :id
