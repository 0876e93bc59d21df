-- Close the open incidents of a subscription, without a message.
UPDATE {p}incident SET closed_at = :now WHERE subscription = :subscription AND closed_at IS NULL
