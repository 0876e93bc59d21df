-- What is counted of them: that an attempt began is told again when it ends.
SELECT at, type, attempt, data FROM {p}event WHERE id > :cursor AND id <= :top AND type <> 'job.started'
