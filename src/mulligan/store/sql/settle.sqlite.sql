-- running → wherever the decision says: fenced by id, worker, token and state.
-- A cancel requested since the decision was made is not overwritten: such a row comes back as a refusal.
UPDATE {p}job SET
  {part:settled}
WHERE id = :id AND worker = :worker AND token = :token AND state = 'running' AND (cancel_reason IS NULL OR :saw_cancel)
