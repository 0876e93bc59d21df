-- What happened is never changed afterwards. It leaves by retention only, what people did long after all the rest.
CREATE TRIGGER {p}events_are_never_changed BEFORE UPDATE ON {p}event
  BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;

CREATE INDEX {p}event_for_audit ON {p}event (id)
  WHERE actor NOT IN ('', 'breaker', 'guard', 'handler', 'hint', 'schedule', 'upkeep') AND type <> 'job.stale_refused';
