-- A database from before retries: campaigns in every old state, with children; columns in another order.
CREATE TABLE schema_steps (number INTEGER PRIMARY KEY, name TEXT);
INSERT INTO schema_steps VALUES (1, '001_accounts.sql'), (2, '002_assets.sql'), (3, '003_campaigns.sql'), (4, '004_jobs.sql'), (5, '005_downloads.sql');

CREATE TABLE accounts (id TEXT PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL);
CREATE TABLE assets (id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE, name TEXT NOT NULL, path TEXT NOT NULL);
CREATE TABLE recipients (id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE, name TEXT NOT NULL, email TEXT NOT NULL);
CREATE TABLE campaigns (
    id TEXT PRIMARY KEY,
    published_at TEXT,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    asset_id TEXT NOT NULL REFERENCES assets (id),
    name TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'DRAFT' CHECK (state IN ('DRAFT', 'PROCESSING', 'READY', 'EXPIRED')),
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    max_downloads INTEGER,
    expires_at TEXT,
    visible_wm INTEGER NOT NULL DEFAULT 1,
    invisible_wm INTEGER NOT NULL DEFAULT 1
);
CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    campaign_id TEXT NOT NULL REFERENCES campaigns (id) ON DELETE CASCADE,
    recipient_id TEXT NOT NULL REFERENCES recipients (id),
    downloads INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    campaign_id TEXT NOT NULL REFERENCES campaigns (id) ON DELETE CASCADE,
    token_id TEXT NOT NULL REFERENCES tokens (id) ON DELETE CASCADE,
    job_type TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('PENDING', 'RUNNING', 'COMPLETED', 'FAILED')),
    progress INTEGER NOT NULL DEFAULT 0,
    error_message TEXT,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    started_at TEXT,
    completed_at TEXT
);

INSERT INTO accounts VALUES ('olga', 'Olga', 'olga@example.com'), ('pia', 'Pia', 'pia@example.com');
INSERT INTO assets VALUES ('talk', 'olga', 'talk.mp4', 'talk.mp4'), ('ad', 'pia', 'ad.mp4', 'ad.mp4');
INSERT INTO recipients VALUES ('ada', 'olga', 'ada', 'ada@x.org'), ('bo', 'olga', 'bo', 'bo@x.org'), ('cy', 'pia', 'cy', 'cy@x.org');
INSERT INTO campaigns (id, account_id, asset_id, name, state, max_downloads, visible_wm, published_at) VALUES
    ('draft', 'olga', 'talk', 'Draft', 'DRAFT', NULL, 1, NULL),
    ('running', 'olga', 'talk', 'Running', 'PROCESSING', 3, 0, '2026-01-02T03:04:05.000Z'),
    ('ready', 'olga', 'talk', 'Ready', 'READY', NULL, 1, '2026-01-01T03:04:05.000Z'),
    ('over', 'pia', 'ad', 'Over', 'EXPIRED', 1, 1, '2025-01-01T03:04:05.000Z'),
    ('late', 'pia', 'ad', 'Late', 'READY', 1, 1, '2025-01-01T03:04:05.000Z');
UPDATE campaigns SET expires_at = '2025-02-01T00:00:00.000Z' WHERE id IN ('over', 'late');
INSERT INTO tokens VALUES
    ('t1', 'running', 'ada', 0), ('t2', 'running', 'bo', 0), ('t3', 'ready', 'ada', 2), ('t4', 'ready', 'bo', 0), ('t5', 'over', 'cy', 1), ('t6', 'late', 'cy', 0);
INSERT INTO jobs (id, campaign_id, token_id, job_type, state, error_message) VALUES
    ('j1', 'running', 't1', 'watermark', 'RUNNING', NULL),
    ('j2', 'running', 't2', 'watermark', 'PENDING', NULL),
    ('j3', 'ready', 't3', 'watermark', 'COMPLETED', NULL),
    ('j4', 'ready', 't4', 'watermark', 'FAILED', 'exit status 137'),
    ('j5', 'over', 't5', 'watermark', 'COMPLETED', NULL);
