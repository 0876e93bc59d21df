-- Delete the message count of a subscription and owner.
DELETE FROM {p}notified WHERE subscription = :subscription AND owner = :owner
