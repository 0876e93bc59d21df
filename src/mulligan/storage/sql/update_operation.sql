-- Store an operation by compare-and-set on its version.
UPDATE {p}operation SET
  state = :state, step = :step, total = :total, tallies = :tallies, recent = :recent, tokens = :tokens,
  tokens_at = :tokens_at, version = :version + 1, active = :active, due_at = :due_at, moved_at = :moved_at,
  started_at = :started_at, finished_at = :finished_at, note = :note
WHERE id = :id AND version = :version
RETURNING id
