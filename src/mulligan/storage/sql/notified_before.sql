-- List message counts whose hour is over.
SELECT {notified} FROM {p}notified WHERE since <= :before ORDER BY since LIMIT :most
