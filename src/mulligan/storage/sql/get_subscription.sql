-- Read one subscription.
SELECT {subscription} FROM {p}subscription WHERE id = :id
