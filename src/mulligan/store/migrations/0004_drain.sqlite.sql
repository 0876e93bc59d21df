-- What a person asks of a worker, and why; NULL: nothing. The worker reads it when it renews.
ALTER TABLE {p}worker ADD COLUMN drain_reason TEXT;
