-- Statements about manifests and what they declare.
-- The macros are explained in storage/statements.py.

-- name: store_manifest
-- Store a manifest, or record that it is still in use.
INSERT INTO {p}manifest (id, app, release, body, created_at, last_used_at) VALUES (:id, :app, :release, :body, :now, :now)
ON CONFLICT (id) DO UPDATE SET last_used_at = excluded.last_used_at

-- name: list_manifests
-- List the stored manifests without their bodies, newest first.
SELECT id, app, release, last_used_at FROM {p}manifest ORDER BY created_at DESC, id

-- name: read_manifest
-- Return the body of one manifest.
SELECT body FROM {p}manifest WHERE id = :id

-- name: delete_manifest
-- Delete one manifest, unless a worker has published it meanwhile.
DELETE FROM {p}manifest WHERE id = :id AND last_used_at <= :published_at RETURNING id

-- name: delete_schedule
-- Delete one schedule.
DELETE FROM {p}schedule WHERE name = :name RETURNING name

-- name: subscription_exists
-- Return a row if there is a subscription with this id.
SELECT 1 FROM {p}subscription WHERE id = :id

-- name: declare_subscription
-- Insert a subscription whose definition is in a manifest.
INSERT INTO {p}subscription (id, declared, name, patterns, owner, batch_id, filter, form, channel, body, endpoint, after, state,
                             reason, version, failures, failing_since, created_at, created_by)
VALUES (:id, true, :id, '', :owner, NULL, '', :form, :channel, '{}', '', :after, 'on', '', 1, 0, NULL, :now, '')
ON CONFLICT (id) DO NOTHING
