-- Insert a batch. No row: its unique key is held; the caller then looks up the holder.
INSERT INTO {p}batch (id, name, owner, tolerance, on_complete, unique_key, unique_hash, created_at)
VALUES (:id, :name, :owner, :tolerance, :on_complete, :unique_key, :unique_hash, :now)
ON CONFLICT (unique_hash) WHERE unique_hash IS NOT NULL DO NOTHING
RETURNING id
