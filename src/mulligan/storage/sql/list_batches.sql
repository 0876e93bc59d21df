-- List batches, newest first, by owner and state.
SELECT {batch} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE (CAST(:owner AS TEXT) IS NULL OR owner = :owner) AND (CAST(:before AS TEXT) IS NULL OR id < :before)
  AND (CAST(:state AS TEXT) IS NULL
       OR :state = CASE WHEN expired_at IS NOT NULL THEN 'expired' ELSE COALESCE(outcome, 'processing') END)
ORDER BY id DESC LIMIT :limit
