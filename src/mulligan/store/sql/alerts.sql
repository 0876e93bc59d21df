SELECT {alert} FROM {p}alert ORDER BY rule, key
