-- Condition: the batch `definition` has no unfinished member.
NOT EXISTS (SELECT 1 FROM {p}job AS member
            WHERE member.batch_id = definition.id AND member.state IN ('queued', 'running', 'parked'))
