-- List incidents, newest first.
SELECT {incident} FROM {p}incident
WHERE (CAST(:subscription AS TEXT) IS NULL OR subscription = :subscription) ORDER BY id DESC LIMIT :limit
