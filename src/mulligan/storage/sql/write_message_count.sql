-- Store the message count of a subscription and owner.
INSERT INTO {p}notified ({message_count}) VALUES (:subscription, :owner, :since, :sent, :withheld)
ON CONFLICT (subscription, owner)
DO UPDATE SET since = excluded.since, sent = excluded.sent, withheld = excluded.withheld
