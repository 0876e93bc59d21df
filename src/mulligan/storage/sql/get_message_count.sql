-- Read the message count of a subscription and owner.
SELECT {message_count} FROM {p}notified WHERE subscription = :subscription AND owner = :owner
