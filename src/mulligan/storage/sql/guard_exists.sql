-- Test whether a guard exists.
SELECT 1 FROM {p}guard WHERE scope = :scope AND key = :key
