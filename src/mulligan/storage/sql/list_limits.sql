-- List the limits that operators set.
SELECT {limit} FROM {p}limits
