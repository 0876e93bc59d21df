-- List all guards.
SELECT {guard} FROM {p}guard
