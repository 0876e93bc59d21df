-- Find the operation with this key, or else the unfinished one with the same content.
SELECT {operation} FROM {p}operation
WHERE (scope = :scope AND key = CAST(:key AS TEXT))
   OR (digest = :digest AND state IN ('gathering', 'running', 'paused'))
ORDER BY CASE WHEN scope = :scope AND key = CAST(:key AS TEXT) THEN 0 ELSE 1 END LIMIT 1
