-- Store a subscription by compare-and-set on its version.
UPDATE {p}subscription SET body = :body, after = :after, state = :state, reason = :reason, failures = :failures,
  failing_since = :failing_since, version = version + 1
WHERE id = :id AND version = :version RETURNING id
