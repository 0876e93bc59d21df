DELETE FROM {p}tally WHERE scope = :scope AND key = :key RETURNING body
