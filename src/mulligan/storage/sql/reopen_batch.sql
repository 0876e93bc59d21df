-- Start a new generation of a completed batch, because a member was retried.
UPDATE {p}batch_progress
SET generation = generation + 1, previous = outcome, outcome = NULL, outcome_at = NULL
WHERE id = :id AND outcome IS NOT NULL AND expired_at IS NULL AND NOT being_pruned RETURNING generation
