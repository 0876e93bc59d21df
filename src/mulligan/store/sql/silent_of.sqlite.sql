SELECT id FROM {p}job WHERE NOT announced AND id IN (SELECT value FROM json_each(:ids))
