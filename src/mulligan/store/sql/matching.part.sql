(CAST(:state AS TEXT) IS NULL OR state = :state) AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
  AND (CAST(:queue AS TEXT) IS NULL OR queue = :queue) AND (CAST(:owner AS TEXT) IS NULL OR owner = :owner)
  AND (CAST(:batch_id AS TEXT) IS NULL OR batch_id = :batch_id)
  AND (CAST(:since AS BIGINT) IS NULL OR created_at >= :now - CAST(:since AS BIGINT))
