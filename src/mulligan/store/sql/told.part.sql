-- `news` becomes events, those that tell the same in one row. Whoever wants it done asks how many they were.
told AS (
  SELECT {p}tell(array_agg(at), array_agg(type), array_agg(job_id), array_agg(batch_id), array_agg(owner),
                 array_agg(attempt), array_agg(token), array_agg(data)) AS n
  FROM news
)
