SELECT {guard} FROM {p}guard
