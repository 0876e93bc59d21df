-- Condition: a closed gate holds the job, for at least as long as the job would wait anyway.
EXISTS (
  SELECT 1 FROM {p}gate AS gate
  WHERE (gate.until IS NULL OR gate.until > :now)
    AND ((gate.scope = 'queue' AND gate.key = queue) OR (gate.scope = 'kind' AND gate.key = kind)
         OR (gate.scope = 'dependency' AND replace(',' || uses || ',', ',' || gate.key || ',', '') <> ',' || uses || ','))
    AND (run_at <= :now
         OR COALESCE(gate.until, CASE WHEN gate.scope = 'dependency' AND gate.actor = 'breaker' THEN gate.probe_at END)
            IS NULL
         OR COALESCE(gate.until, CASE WHEN gate.scope = 'dependency' AND gate.actor = 'breaker' THEN gate.probe_at END)
            >= run_at))
