-- Whichever come first: no order, no bounds, so that any index of such jobs will do.
SELECT count(*) FROM (SELECT 1 FROM {p}job WHERE {matching} LIMIT :cap) AS few
