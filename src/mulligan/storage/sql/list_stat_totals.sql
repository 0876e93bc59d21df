-- Read the totals since counting began.
SELECT {stat} FROM {p}stat WHERE minute = 0 ORDER BY name, labels
