-- Turn the rows in `locked` into leases and select their events.
-- A locked row cannot move, so it is addressed by its ctid.
taken AS (
  UPDATE {p}job SET {part:claim_assignments}
  WHERE ctid = ANY (ARRAY(SELECT row_location FROM locked))
  RETURNING {lease}
), events AS (
  {part:queued_events}
  FROM taken WHERE id IN (SELECT locked_id FROM locked WHERE NOT was_announced)
  UNION ALL
  {part:started_events}
  FROM taken
), {part:write_events}
