-- Insert an API key.
INSERT INTO {p}api_key ({api_key})
VALUES (:id, :hash, :name, :scope, :role, :created_at, :created_by, :expires_at, :last_used_at, :revoked_at)
