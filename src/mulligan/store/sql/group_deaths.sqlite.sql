-- The newest deaths of a group, each as what it is counted by: kind, code, class, and how many hours ago (beyond the
-- last day whole days). To count them in Python takes half the time of a GROUP BY, which would sort them all.
SELECT kind, died_code, died_class,
       CASE WHEN finished_at >= :moment THEN 0
            WHEN finished_at <= :moment - :hours * 3600000000 THEN :hours
            WHEN finished_at <= :moment - 86400000000 THEN (:moment - finished_at) / 86400000000 * 24
            ELSE (:moment - finished_at) / 3600000000 END
FROM {p}job WHERE {matching} AND died_group = :name ORDER BY finished_at DESC LIMIT :cap
