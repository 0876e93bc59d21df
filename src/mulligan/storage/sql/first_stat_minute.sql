-- Find the first minute of a range that has statistics.
SELECT min(minute) FROM {p}stat WHERE minute >= :since AND minute < :until
