-- List the failure groups of jobs that match a filter, with the newest death of each.
SELECT died_group, max(finished_at) AS last FROM {p}job WHERE {matching} GROUP BY died_group
ORDER BY last DESC, died_group LIMIT :limit
