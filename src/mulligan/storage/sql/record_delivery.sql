-- Reset the failure count of a subscription after a delivery.
UPDATE {p}subscription SET failures = 0, failing_since = NULL WHERE id = :id AND failures > 0
