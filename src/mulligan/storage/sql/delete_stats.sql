-- Delete the statistics of a range of minutes.
DELETE FROM {p}stat WHERE minute > :after AND minute < :before
