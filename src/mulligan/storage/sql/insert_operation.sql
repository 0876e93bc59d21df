-- Insert an operation. No row: its key exists, or an unfinished operation has the same content.
INSERT INTO {p}operation ({operation}) VALUES (
  :id, :action, :filter, :fixed, :params, :steps, :rate, :stop_if, :scope, :actor, :reason, :key, :digest, :state,
  :step, :total, :tallies, :recent, :tokens, :tokens_at, :version, :active, :due_at, :moved_at, :created_at,
  :started_at, :finished_at, :note)
ON CONFLICT DO NOTHING
RETURNING id
