-- Delete a subscription.
DELETE FROM {p}subscription WHERE id = :id RETURNING id
