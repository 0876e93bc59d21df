-- Two more states of a campaign. Retries of a job need no columns here: step 007 leaves jobs to Mulligan.

-- SQLite cannot change a CHECK constraint: create a new table. Copy by name, as the order may differ.
CREATE TABLE campaigns_new (
    id TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    asset_id TEXT NOT NULL REFERENCES assets (id),
    name TEXT NOT NULL,
    max_downloads INTEGER,
    expires_at TEXT,
    visible_wm INTEGER NOT NULL DEFAULT 1,
    invisible_wm INTEGER NOT NULL DEFAULT 1,
    state TEXT NOT NULL DEFAULT 'DRAFT'
        CHECK (state IN ('DRAFT', 'PROCESSING', 'READY', 'PARTIAL', 'FAILED', 'EXPIRED')),
    created_at TEXT NOT NULL,
    published_at TEXT
);

INSERT INTO campaigns_new
    (id, account_id, asset_id, name, max_downloads, expires_at, visible_wm, invisible_wm, state, created_at, published_at)
SELECT id, account_id, asset_id, name, max_downloads, expires_at, visible_wm, invisible_wm, state, created_at, published_at
FROM campaigns;

DROP TABLE campaigns;
ALTER TABLE campaigns_new RENAME TO campaigns;
CREATE INDEX ix_campaigns_account_id ON campaigns (account_id);
