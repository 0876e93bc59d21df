-- Insert a worker. No row: the id exists.
INSERT INTO {p}worker ({worker})
VALUES (:id, :host, :pid, :boot_id, :lease, :now, :now, :renewed_mono, NULL, '', :lock_path, :lock_dev, :lock_ino,
        :kinds, :queues, :concurrency, :release, :draining, :drain_reason)
ON CONFLICT (id) DO NOTHING
RETURNING id
