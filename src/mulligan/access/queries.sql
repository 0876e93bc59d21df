-- Statements about API keys, stored responses and sessions of the dashboard.
-- The macros are explained in storage/statements.py.

-- name: insert_api_key
-- Insert an API key.
INSERT INTO {p}api_key ({ApiKeyRow})
VALUES (:id, :hash, :name, :scope, :role, :created_at, :created_by, :expires_at, :last_used_at, :revoked_at)

-- name: get_api_key
-- Read one API key.
SELECT {ApiKeyRow} FROM {p}api_key WHERE id = :id

-- name: list_api_keys
-- List all API keys, oldest first.
SELECT {ApiKeyRow} FROM {p}api_key ORDER BY created_at, id

-- name: revoke_api_key
-- Revoke an API key.
UPDATE {p}api_key SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL RETURNING {ApiKeyRow}

-- name: record_api_key_use
-- Record that an API key was used.
UPDATE {p}api_key SET last_used_at = :now WHERE id = :id

-- name: claim_idempotency_key
-- Claim an idempotency key before the request runs. No row: another request has claimed it.
-- A claim without a response that was not renewed since :before is taken over.
INSERT INTO {p}answer (key_id, name, request, claim, at) VALUES (:key_id, :name, :request, :claim, :now)
ON CONFLICT (key_id, name) DO UPDATE SET at = excluded.at, claim = excluded.claim
  WHERE {p}answer.status IS NULL AND {p}answer.at < :before AND {p}answer.request = excluded.request
RETURNING name

-- name: get_stored_response
-- Read the stored response to an HTTP request with an Idempotency-Key.
SELECT request, status, body FROM {p}answer WHERE key_id = :key_id AND name = :name

-- name: insert_response
-- Store the response to a request that ran in this transaction. No row: another request was first.
INSERT INTO {p}answer (key_id, name, request, at, status, body)
VALUES (:key_id, :name, :request, :now, :status, :body)
ON CONFLICT (key_id, name) DO NOTHING RETURNING name

-- name: lock_idempotency_key
-- SQLite has one writer: no other transaction can have the key.
SELECT 1 WHERE :name <> ''

-- name: renew_idempotency_keys
-- Renew the claims of requests that still run.
UPDATE {p}answer SET at = :now WHERE claim {in:claims} AND status IS NULL

-- name: store_response
-- Store the response to a request that has claimed its Idempotency-Key.
UPDATE {p}answer SET status = :status, body = :body WHERE claim = :claim AND status IS NULL

-- name: release_idempotency_keys
-- Delete the claims of requests that failed without a response.
DELETE FROM {p}answer WHERE claim {in:claims} AND status IS NULL

-- name: insert_session
-- Insert a session or a sign-in link.
INSERT INTO {p}session ({SessionRow}) VALUES (:hash, :is_link, :key_id, :scope, :role, :created_at, :expires_at)

-- name: get_session
-- Read a session or sign-in link that has not expired.
SELECT {SessionRow} FROM {p}session WHERE hash = :hash AND is_link = :is_link AND expires_at > :now

-- name: delete_session
-- Delete a session or sign-in link and return it. Of two requests with one link, one gets the row.
DELETE FROM {p}session WHERE hash = :hash AND is_link = :is_link RETURNING {SessionRow}

-- name: get_status_secret
-- Read the secret that signs status links.
SELECT value FROM {p}meta WHERE key = 'status_secret'

-- name: store_status_secret
-- Store the secret that signs status links, unless there is one.
INSERT INTO {p}meta (key, value) VALUES ('status_secret', :value) ON CONFLICT (key) DO NOTHING
