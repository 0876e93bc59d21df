-- Read one guard.
SELECT {guard} FROM {p}guard WHERE scope = :scope AND key = :key
