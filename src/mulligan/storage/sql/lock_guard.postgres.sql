-- Lock and read one guard until its update is committed.
-- SKIP LOCKED: if another worker holds it, the caller appends a tally instead of waiting.
SELECT {guard} FROM {p}guard WHERE scope = :scope AND key = :key FOR UPDATE SKIP LOCKED
