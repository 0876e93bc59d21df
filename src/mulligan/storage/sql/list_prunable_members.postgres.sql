-- Lock members of a batch that is being removed.
SELECT id, kind, state, owner, error FROM {p}job WHERE batch_id = :id LIMIT :limit FOR UPDATE SKIP LOCKED
