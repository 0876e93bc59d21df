-- Take and delete the tallies of one guard, in the order in which they were written.
WITH taken AS (DELETE FROM {p}tally WHERE scope = :scope AND key = :key RETURNING id, body)
SELECT body FROM taken ORDER BY id
