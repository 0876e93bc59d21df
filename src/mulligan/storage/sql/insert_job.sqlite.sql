-- Insert one job. No row: its unique key is held; the caller then looks up the holder.
INSERT INTO {p}job (id, kind, queue, owner, priority, lane, uses, run_at, created_at, deadline_at, deadline_span,
                    announced, max_retries, policy, timeout, unique_key, unique_hash, unique_cover, unique_until,
                    batch_id, must_have, trace, payload)
VALUES (:id, :kind, :queue, :owner, :priority, :lane, :uses,
        COALESCE(:at, :now + :delay), :now,
        COALESCE(:deadline_fixed, :now + :deadline_span),
        COALESCE(:deadline_span, :deadline_fixed - :now),
        :announce, :max_retries, :policy, :timeout, :unique_key, :unique_hash, :unique_cover,
        :now + :unique_for, :batch_id, :must_have, :trace, :payload)
ON CONFLICT (unique_hash) WHERE unique_hash IS NOT NULL DO NOTHING
RETURNING id, run_at
