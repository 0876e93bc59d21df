SELECT {guard} FROM {p}guard WHERE active
