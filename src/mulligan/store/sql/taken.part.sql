-- What all that take have in common: what is locked becomes leases, with their events. A locked row stays
-- where it is, so it is found by its place.
taken AS (
  UPDATE {p}job SET {part:becomes}
  WHERE ctid = ANY (ARRAY(SELECT locked_at FROM locked))
  RETURNING {lease}
), leased AS MATERIALIZED (
  SELECT * FROM taken JOIN locked ON locked_id = id ORDER BY place
), news AS (
  {part:queued}
  FROM leased WHERE NOT was_told
  UNION ALL
  {part:begun}
  FROM leased
), {part:told}
