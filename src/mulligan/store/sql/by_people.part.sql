actor NOT IN ('', 'breaker', 'guard', 'handler', 'hint', 'schedule', 'upkeep') AND type <> 'job.stale_refused'
