-- Insert jobs from arrays.
-- The subqueries make the server call the clock once per statement instead of once per row.
INSERT INTO {p}job (id, kind, queue, owner, priority, lane, uses, run_at, created_at, deadline_at, deadline_span,
                    announced, max_retries, policy, timeout, unique_key, unique_hash, unique_cover, unique_until,
                    batch_id, must_have, trace, payload)
SELECT id, kind, queue, owner, priority, lane, uses,
       COALESCE(at, (SELECT {p}now_us()) + delay), (SELECT {p}now_us()),
       COALESCE(deadline_fixed, (SELECT {p}now_us()) + deadline_span),
       COALESCE(deadline_span, deadline_fixed - (SELECT {p}now_us())),
       CAST(:announce AS boolean), max_retries, policy, timeout, unique_key, unique_hash, unique_cover,
       (SELECT {p}now_us()) + unique_for, batch_id, must_have, trace, payload
FROM {set:insert}
