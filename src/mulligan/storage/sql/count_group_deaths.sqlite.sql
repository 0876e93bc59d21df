-- Read the newest deaths of one failure group with their age in hours, after a day in whole days.
-- Counting them in Python takes half the time of GROUP BY, which would sort them all.
SELECT kind, died_code, died_class,
       CASE WHEN finished_at >= :at_time THEN 0
            WHEN finished_at <= :at_time - :hours * 3600000000 THEN :hours
            WHEN finished_at <= :at_time - 86400000000 THEN (:at_time - finished_at) / 86400000000 * 24
            ELSE (:at_time - finished_at) / 3600000000 END
FROM {p}job WHERE {matching} AND died_group = :name ORDER BY finished_at DESC LIMIT :cap
