-- The next of the jobs it is about, as they are now, in the order of their ids.
INSERT INTO {p}operation_item (operation, place, job_id, generation, was, cause, code)
SELECT CAST(:operation AS TEXT), CAST(:place AS BIGINT) + row_number() OVER (ORDER BY id), id, generation, state,
       died_group, died_code
FROM (
  SELECT id, generation, state, died_group, died_code FROM {p}job
  WHERE {matching} AND id > :after ORDER BY id LIMIT :most
) AS few
RETURNING place
