-- Insert jobs like `insert_jobs`, with the arguments that filters can look up.
WITH {part:insert_and_announce}, indexed AS (
  INSERT INTO {p}job_arg (name, value, job_id, kind)
  SELECT arg.name, arg.value, fresh.id, fresh.kind
  FROM unnest(CAST(:arg_jobs AS text[]), CAST(:arg_names AS text[]), CAST(:arg_values AS text[]))
       AS arg(job_id, name, value)
  JOIN fresh ON fresh.id = arg.job_id
)
SELECT id, run_at, created_at, (SELECT count(*) FROM notified), (SELECT n FROM logged) FROM fresh LIMIT CAST(:max_rows AS bigint)
