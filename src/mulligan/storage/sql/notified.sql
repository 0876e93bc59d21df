-- Read the message count of a subscription and owner.
SELECT {notified} FROM {p}notified WHERE subscription = :subscription AND owner = :owner
