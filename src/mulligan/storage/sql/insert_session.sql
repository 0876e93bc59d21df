-- Insert a session or a sign-in link.
INSERT INTO {p}session ({session}) VALUES (:hash, :is_link, :key_id, :scope, :role, :created_at, :expires_at)
