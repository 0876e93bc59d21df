-- Read statistics of a range of minutes.
SELECT {stat} FROM {p}stat
WHERE minute >= :since AND minute < :until AND name IN (SELECT value FROM json_each(:names)) ORDER BY minute, name, labels
