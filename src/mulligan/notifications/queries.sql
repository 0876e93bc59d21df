-- Statements about subscriptions, incidents and message counts.
-- The macros are explained in storage/statements.py.

-- name: list_subscriptions
-- List all subscriptions.
SELECT {SubscriptionRow} FROM {p}subscription ORDER BY id

-- name: subscriptions_version
-- Compute a value that changes with every change of a subscription, to validate a cache.
-- A new subscription adds its created_at, and every update raises a version.
SELECT count(*), CAST(coalesce(sum(version), 0) AS BIGINT), CAST(coalesce(sum(created_at % 1000000007), 0) AS BIGINT)
FROM {p}subscription

-- name: get_subscription
-- Read one subscription.
SELECT {SubscriptionRow} FROM {p}subscription WHERE id = :id

-- name: find_subscriptions
-- Find subscriptions whose id starts with a prefix.
SELECT id FROM {p}subscription WHERE id >= :prefix AND id < :upper ORDER BY id LIMIT :limit

-- name: insert_subscription
-- Insert a subscription. No row: there is one with this id.
INSERT INTO {p}subscription ({SubscriptionRow})
VALUES (:id, :declared, :name, :patterns, :owner, :batch_id, :filter, :form, :channel, :body, :endpoint, :after, :state,
        :reason, :version, :failures, :failing_since, :now, :created_by)
ON CONFLICT (id) DO NOTHING RETURNING id

-- name: update_subscription
-- Store a subscription by compare-and-set on its version.
UPDATE {p}subscription SET body = :body, after = :after, state = :state, reason = :reason, failures = :failures,
  failing_since = :failing_since, version = version + 1
WHERE id = :id AND version = :version RETURNING id

-- name: close_incidents
-- Close the open incidents of a subscription, without a message.
UPDATE {p}incident SET closed_at = :now WHERE subscription = :subscription AND closed_at IS NULL

-- name: delete_subscription
-- Delete a subscription.
DELETE FROM {p}subscription WHERE id = :id RETURNING id

-- name: record_delivery
-- Reset the failure count of a subscription after a delivery.
UPDATE {p}subscription SET failures = 0, failing_since = NULL WHERE id = :id AND failures > 0

-- name: record_failed_delivery
-- Count a failed delivery of a subscription.
UPDATE {p}subscription SET failures = failures + 1, failing_since = coalesce(failing_since, :now)
WHERE id = :id RETURNING {SubscriptionRow}

-- name: find_earlier_delivery
-- Find the oldest delivery of a thread that is not finished and was enqueued before :id.
SELECT earlier.state, earlier.run_at
FROM {p}job_arg AS in_thread
JOIN {p}job_arg AS subscribed ON subscribed.name = 'subscription' AND subscribed.value = :subscription
  AND subscribed.job_id = in_thread.job_id
JOIN {p}job AS earlier ON earlier.id = in_thread.job_id
JOIN {p}job AS this ON this.id = :id
WHERE in_thread.name = :path AND in_thread.value = :thread AND earlier.state IN ('queued', 'running')
  AND (earlier.created_at < this.created_at OR (earlier.created_at = this.created_at AND earlier.id < this.id))
ORDER BY earlier.created_at, earlier.id LIMIT 1

-- name: list_open_incidents
-- List the open incidents of causes and of batches.
SELECT {IncidentRow} FROM {p}incident WHERE closed_at IS NULL AND key {in:keys}
UNION
SELECT {IncidentRow} FROM {p}incident WHERE closed_at IS NULL AND batch_id <> '' AND batch_id {in:keys}

-- name: list_due_incidents
-- List open incidents that are due.
SELECT {IncidentRow} FROM {p}incident WHERE closed_at IS NULL AND due_at <= :at_time ORDER BY due_at LIMIT :limit

-- name: next_incident_due
-- Find when the next open incident is due.
SELECT min(due_at) FROM {p}incident WHERE closed_at IS NULL

-- name: list_incidents
-- List incidents, newest first.
SELECT {IncidentRow} FROM {p}incident
WHERE (CAST(:subscription AS TEXT) IS NULL OR subscription = :subscription) ORDER BY id DESC LIMIT :limit

-- name: insert_incident
-- Insert an incident.
INSERT INTO {p}incident ({IncidentRow})
VALUES (:id, :subscription, :owner, :key, :batch_id, :body, :due_at, :opened_at, :closed_at)

-- name: update_incident
-- Store an incident.
UPDATE {p}incident SET body = :body, due_at = :due_at, closed_at = :closed_at WHERE id = :id

-- name: get_message_count
-- Read the message count of a subscription and owner.
SELECT {MessageCountRow} FROM {p}notified WHERE subscription = :subscription AND owner = :owner

-- name: list_message_counts
-- List message counts whose hour is over.
SELECT {MessageCountRow} FROM {p}notified WHERE since <= :before ORDER BY since LIMIT :limit

-- name: oldest_message_count
-- Find the start of the oldest message count.
SELECT min(since) FROM {p}notified

-- name: write_message_count
-- Store the message count of a subscription and owner.
INSERT INTO {p}notified ({MessageCountRow}) VALUES (:subscription, :owner, :since, :sent, :withheld)
ON CONFLICT (subscription, owner)
DO UPDATE SET since = excluded.since, sent = excluded.sent, withheld = excluded.withheld

-- name: delete_message_count
-- Delete the message count of a subscription and owner.
DELETE FROM {p}notified WHERE subscription = :subscription AND owner = :owner
