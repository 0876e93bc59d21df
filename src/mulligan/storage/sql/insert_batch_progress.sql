-- Insert the progress row of a batch.
INSERT INTO {p}batch_progress (id, expires_at)
VALUES (:id, COALESCE(CAST(:expires_at AS BIGINT), :now + CAST(:expires_span AS BIGINT)))
