-- Jobs are Mulligan's from here on: the pages enqueue every unfinished copy when they start.
-- The old table of jobs stays as history, unchanged.

ALTER TABLE accounts ADD COLUMN key TEXT;
UPDATE accounts SET key = lower(hex(randomblob(24)));
CREATE UNIQUE INDEX accounts_by_key ON accounts (key);

ALTER TABLE campaigns ADD COLUMN batch_id TEXT;

ALTER TABLE tokens ADD COLUMN job_id TEXT;
ALTER TABLE tokens ADD COLUMN mark TEXT;
UPDATE tokens SET mark = lower(hex(randomblob(4)));
CREATE UNIQUE INDEX tokens_by_mark ON tokens (mark);
CREATE INDEX ix_campaigns_batch_id ON campaigns (batch_id);
CREATE INDEX ix_tokens_job_id ON tokens (job_id);
