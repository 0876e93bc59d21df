-- The jobs that are looked at: enqueued since then, after this id, of this kind and queue, and none of our own.
SELECT id, uses, state, token, generation, created_at, finished_at, error, ran_by FROM {p}job
WHERE id > :after AND created_at >= :since AND kind NOT LIKE 'mulligan.%'
  AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind) AND (CAST(:queue AS TEXT) IS NULL OR queue = :queue)
