-- Read the newest deaths of one failure group with their age in hours, after a day in whole days.
-- Counting them in Python takes half the time of GROUP BY, which would sort them all.
SELECT kind, died_code, died_class,
       CASE WHEN finished_at >= :moment THEN 0
            WHEN finished_at <= :moment - :hours * 3600000000 THEN :hours
            WHEN finished_at <= :moment - 86400000000 THEN (:moment - finished_at) / 86400000000 * 24
            ELSE (:moment - finished_at) / 3600000000 END
FROM {p}job WHERE {matching} AND died_group = :name ORDER BY finished_at DESC LIMIT :cap
