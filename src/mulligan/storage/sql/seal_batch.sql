-- Seal a batch. Waits for transactions that are adding members.
UPDATE {p}batch SET sealed_at = :now WHERE id = :id AND sealed_at IS NULL RETURNING id
