-- Insert one job of a set. If its unique key is held, no row changes and the caller looks up the holder.
INSERT INTO {p}job (id, kind, queue, owner, priority, lane, uses, run_at, created_at, deadline_at, deadline_span,
                    announced, max_retries, policy, timeout, unique_key, unique_hash, unique_cover, unique_until,
                    batch_id, must_have, trace, payload)
VALUES (:id, :kind, :queue, :owner, :priority,
        :queue || '|' || :kind || '|' || :uses || '|' || CASE :share WHEN '' THEN '' ELSE :share || '|' END || '0',
        :uses, COALESCE(:run_at, :now + :delay), :now, COALESCE(:deadline_at, :now + :deadline),
        COALESCE(:deadline, :deadline_at - :now), :announce, :max_retries, :policy, :timeout,
        :unique_key, :unique_hash, :unique_cover, :now + :unique_for, :batch_id, :must_have, :trace, :payload)
ON CONFLICT (unique_hash) WHERE unique_hash IS NOT NULL DO NOTHING
