-- Insert an incident.
INSERT INTO {p}incident ({incident})
VALUES (:id, :subscription, :owner, :key, :body, :due_at, :opened_at, :closed_at)
