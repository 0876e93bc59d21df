-- Kinds of our own are shown to who asks for them by name.
(CAST(:state AS TEXT) IS NULL OR state = :state)
  AND (CASE WHEN CAST(:kind AS TEXT) IS NULL THEN kind NOT LIKE 'mulligan.%' ELSE kind = :kind END)
  AND (CAST(:queue AS TEXT) IS NULL OR queue = :queue) AND (CAST(:owner AS TEXT) IS NULL OR owner = :owner)
  AND (CAST(:batch_id AS TEXT) IS NULL OR batch_id = :batch_id)
  AND (CAST(:since AS BIGINT) IS NULL OR created_at >= :now - CAST(:since AS BIGINT))
