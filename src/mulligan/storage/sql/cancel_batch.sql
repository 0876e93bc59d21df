-- Cancel a batch, and seal it if it is open.
UPDATE {p}batch SET sealed_at = COALESCE(sealed_at, :now), cancelled_at = :now, cancel_reason = :reason
WHERE id = :id AND cancelled_at IS NULL RETURNING id
