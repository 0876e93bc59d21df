-- Seal a batch, unless a transaction is adding members. SKIP LOCKED: upkeep tries again later.
UPDATE {p}batch SET sealed_at = {p}now_us()
WHERE id IN (SELECT id FROM {p}batch WHERE id = :id AND sealed_at IS NULL FOR UPDATE SKIP LOCKED) RETURNING id
