-- Mark items of an operation as sent.
UPDATE {p}operation_item SET state = 'sent'
WHERE operation = :operation AND place IN (SELECT value FROM json_each(:places))
