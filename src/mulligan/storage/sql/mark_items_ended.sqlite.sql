-- Store the outcome of items of an operation.
UPDATE {p}operation_item SET state = 'ended', outcome = :outcome, message = :message, ended_at = :at
WHERE operation = :operation AND place IN (SELECT value FROM json_each(:places))
