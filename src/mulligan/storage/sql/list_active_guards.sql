-- List the guards that restrict claims.
SELECT {guard} FROM {p}guard WHERE active
