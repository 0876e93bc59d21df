-- Read statistics of a range of minutes.
SELECT {stat} FROM {p}stat
WHERE minute >= :since AND minute < :until AND name = ANY (CAST(:names AS text[])) ORDER BY minute, name, labels
