-- Count jobs that match a filter, up to a cap.
-- No order and no bounds, so that the planner may use any index.
SELECT count(*) FROM (SELECT 1 FROM {p}job WHERE {matching} LIMIT :cap) AS few
