actor NOT IN ('', 'alert', 'breaker', 'guard', 'handler', 'hint', 'schedule', 'upkeep') AND type <> 'job.stale_refused'
