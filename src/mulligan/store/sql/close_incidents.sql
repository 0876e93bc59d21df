-- Nobody is told of them any more.
UPDATE {p}incident SET closed_at = :now WHERE subscription = :subscription AND closed_at IS NULL
