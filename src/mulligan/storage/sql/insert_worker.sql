-- Insert a worker. No row: the id exists.
INSERT INTO {p}worker ({worker})
VALUES (:id, :host, :pid, :boot_id, :lease, :now, :now, :renewed_mono, NULL, '', :life_path, :life_dev, :life_ino,
        :kinds, :queues, :concurrency, :release, :draining, :drain_reason)
ON CONFLICT (id) DO NOTHING
RETURNING id
