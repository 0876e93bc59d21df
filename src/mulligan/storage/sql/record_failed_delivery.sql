-- Count a failed delivery of a subscription.
UPDATE {p}subscription SET failures = failures + 1, failing_since = coalesce(failing_since, :now)
WHERE id = :id RETURNING {subscription}
