-- Insert a job without a unique key. It cannot conflict, and its run_at is known beforehand.
INSERT INTO {p}job (id, kind, queue, owner, priority, lane, uses, run_at, created_at, deadline_at, deadline_span,
                    announced, max_retries, policy, timeout, unique_key, unique_hash, unique_cover, unique_until,
                    batch_id, must_have, trace, payload)
VALUES (:id, :kind, :queue, :owner, :priority, :lane, :uses,
        COALESCE(:at, :now + :delay), :now,
        COALESCE(:deadline_fixed, :now + :deadline_span),
        COALESCE(:deadline_span, :deadline_fixed - :now),
        :announce, :max_retries, :policy, :timeout, :unique_key, :unique_hash, :unique_cover,
        :now + :unique_for, :batch_id, :must_have, :trace, :payload)
