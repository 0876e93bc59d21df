-- Remove the limit that an operator set.
DELETE FROM {p}limits WHERE scope = :scope AND key = :key RETURNING key
