-- What all that take have in common: what is locked becomes leases, with their events. A locked row stays
-- where it is, so it is found by its place.
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
