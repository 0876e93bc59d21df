-- Once per generation, whoever comes.
UPDATE {p}batch_progress SET outcome = :outcome, outcome_at = :now
WHERE id = :id AND generation = :generation AND outcome IS NULL RETURNING id
