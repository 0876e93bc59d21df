-- Test whether a token bucket exists.
SELECT 1 FROM {p}meter WHERE scope = :scope AND key = :key
