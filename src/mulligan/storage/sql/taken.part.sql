-- Turn the rows in `locked` into leases and select their events.
-- A locked row cannot move, so it is addressed by its ctid.
taken AS (
  UPDATE {p}job SET {part:becomes}
  WHERE ctid = ANY (ARRAY(SELECT locked_at FROM locked))
  RETURNING {as_lease}
), news AS (
  {part:queued}
  FROM taken WHERE id IN (SELECT locked_id FROM locked WHERE NOT was_told)
  UNION ALL
  {part:begun}
  FROM taken
), {part:told}
