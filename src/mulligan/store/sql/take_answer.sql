-- No row: somebody else has it in hand, or has answered. What was begun long ago and never answered is taken over.
INSERT INTO {p}answer (key_id, name, request, at) VALUES (:key_id, :name, :request, :now)
ON CONFLICT (key_id, name) DO UPDATE SET at = excluded.at
  WHERE {p}answer.status IS NULL AND {p}answer.at < :before AND {p}answer.request = excluded.request
RETURNING name
