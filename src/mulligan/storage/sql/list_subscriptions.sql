-- List all subscriptions.
SELECT {subscription} FROM {p}subscription ORDER BY id
