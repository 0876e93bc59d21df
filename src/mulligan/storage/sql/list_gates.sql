-- List all closed gates.
SELECT {gate} FROM {p}gate ORDER BY scope, key
