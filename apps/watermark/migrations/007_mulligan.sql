-- Jobs are Mulligan's from here on. The old table of jobs stays as history.

ALTER TABLE accounts ADD COLUMN key TEXT;
UPDATE accounts SET key = lower(hex(randomblob(24)));
CREATE UNIQUE INDEX accounts_by_key ON accounts (key);

ALTER TABLE campaigns ADD COLUMN batch_id TEXT;

ALTER TABLE tokens ADD COLUMN job_id TEXT;
ALTER TABLE tokens ADD COLUMN mark TEXT;
UPDATE tokens SET mark = lower(hex(randomblob(4)));
CREATE UNIQUE INDEX tokens_by_mark ON tokens (mark);
