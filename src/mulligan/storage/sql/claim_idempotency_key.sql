-- Claim an idempotency key before the request runs. No row: another request has claimed it.
-- A claim without a response that is older than :before is taken over.
INSERT INTO {p}answer (key_id, name, request, at) VALUES (:key_id, :name, :request, :now)
ON CONFLICT (key_id, name) DO UPDATE SET at = excluded.at
  WHERE {p}answer.status IS NULL AND {p}answer.at < :before AND {p}answer.request = excluded.request
RETURNING name
