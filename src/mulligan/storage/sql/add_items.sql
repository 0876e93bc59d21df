-- Add the next matching jobs to an operation, as they are now, in order of id.
INSERT INTO {p}operation_item (operation, place, job_id, generation, initial_state, cause, code)
SELECT CAST(:operation AS TEXT), CAST(:place AS BIGINT) + row_number() OVER (ORDER BY id), id, generation, state,
       died_group, died_code
FROM (
  SELECT id, generation, state, died_group, died_code FROM {p}job
  WHERE {matching} AND id > :after ORDER BY id LIMIT :limit
) AS few
RETURNING place
