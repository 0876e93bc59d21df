SELECT {limit} FROM {p}limits
