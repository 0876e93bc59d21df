-- Release the unique key of a job whose hold has expired.
-- The condition on unique_hash keeps a second enqueuer from releasing the key of a newer holder.
UPDATE {p}job SET unique_hash = NULL WHERE id = :id AND unique_hash = :unique_hash AND unique_until <= :now
