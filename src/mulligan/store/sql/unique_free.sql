-- An expired holder gives its key up; the condition keeps two enqueuers from freeing a newer holder.
UPDATE {p}job SET unique_hash = NULL WHERE id = :id AND unique_hash = :unique_hash AND unique_until <= :now
