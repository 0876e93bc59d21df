-- What happened is never changed afterwards. It leaves by retention only, what people did long after all the rest.
CREATE FUNCTION {p}keep_events() RETURNS trigger LANGUAGE plpgsql
  AS $$ BEGIN RAISE EXCEPTION 'events are never changed' USING ERRCODE = 'integrity_constraint_violation'; END $$;
CREATE TRIGGER events_are_never_changed BEFORE UPDATE ON {p}event
  FOR EACH STATEMENT EXECUTE FUNCTION {p}keep_events();

CREATE INDEX event_for_audit ON {p}event (id)
  WHERE actor NOT IN ('', 'breaker', 'guard', 'handler', 'hint', 'schedule', 'upkeep') AND type <> 'job.stale_refused';
