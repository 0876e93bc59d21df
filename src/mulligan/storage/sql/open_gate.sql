-- Open a gate.
DELETE FROM {p}gate WHERE scope = :scope AND key = :key RETURNING key
