-- The one of this key, else the one of this content that is under way.
SELECT {operation} FROM {p}operation
WHERE (scope = :scope AND key = CAST(:key AS TEXT))
   OR (digest = :digest AND state IN ('gathering', 'running', 'paused'))
ORDER BY CASE WHEN scope = :scope AND key = CAST(:key AS TEXT) THEN 0 ELSE 1 END LIMIT 1
