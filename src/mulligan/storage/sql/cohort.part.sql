-- Select the jobs of a report: by age, id, kind and queue, without Mulligan's own kinds.
SELECT id, uses, state, token, generation, created_at, finished_at, error, succeeded_by FROM {p}job
WHERE id > :after AND created_at >= :since AND kind NOT LIKE 'mulligan.%'
  AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind) AND (CAST(:queue AS TEXT) IS NULL OR queue = :queue)
