-- Seal a batch. SQLite has one writer, so no transaction can be adding members.
UPDATE {p}batch SET sealed_at = :now WHERE id = :id AND sealed_at IS NULL RETURNING id
