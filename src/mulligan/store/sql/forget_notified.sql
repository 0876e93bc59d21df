DELETE FROM {p}notified WHERE subscription = :subscription AND owner = :owner
