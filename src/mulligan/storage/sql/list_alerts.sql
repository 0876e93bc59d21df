-- List the state of all alert rules.
SELECT {alert} FROM {p}alert ORDER BY rule, key
