-- Condition: the event is an action of a person. It must equal that of the index event_for_audit.
actor NOT IN ('', 'alert', 'breaker', 'guard', 'handler', 'hint', 'schedule', 'upkeep') AND type <> 'job.stale_refused'
