-- Store the outcome of a batch. The condition lets only one writer do so per generation.
UPDATE {p}batch_progress SET outcome = :outcome, outcome_at = :now
WHERE id = :id AND generation = :generation AND outcome IS NULL RETURNING id
