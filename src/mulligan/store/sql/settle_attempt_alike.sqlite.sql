-- `settle_attempt` for the same; what is of each attempt alone stands in `rows`.
INSERT INTO {p}attempt ({attempt})
SELECT json_extract(value, '$[0]'), :token, json_extract(value, '$[1]'), json_extract(value, '$[2]'), :worker, :settled_by,
       json_extract(value, '$[3]'), :now, :ended, :verb, :code, :cls, :rule, :public, :evidence, json_extract(value, '$[4]'),
       :fingerprint, :run_at, :reason, :cost, :judged
FROM json_each(:rows)
