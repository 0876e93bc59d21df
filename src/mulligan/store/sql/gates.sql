SELECT {gate} FROM {p}gate
