-- Store the tokens that are left in a bucket.
UPDATE {p}meter SET tokens = :tokens, at = :at WHERE scope = :scope AND key = :key
