-- Take and delete the tallies of one guard.
DELETE FROM {p}tally WHERE scope = :scope AND key = :key RETURNING body
