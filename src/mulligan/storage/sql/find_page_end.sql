-- Find the id at which a page of matching jobs ends, and the id after it.
SELECT id FROM {p}job WHERE {matching} AND id < :before ORDER BY id DESC LIMIT 2 OFFSET :skip
