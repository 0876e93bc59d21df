SELECT {schedule} FROM {p}schedule ORDER BY name
