-- List message counts whose hour is over.
SELECT {message_count} FROM {p}notified WHERE since <= :before ORDER BY since LIMIT :limit
