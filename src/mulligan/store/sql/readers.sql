SELECT {reader} FROM {p}reader ORDER BY name
