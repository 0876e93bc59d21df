-- Read a token bucket.
SELECT tokens, at, :now FROM {p}meter WHERE scope = :scope AND key = :key
