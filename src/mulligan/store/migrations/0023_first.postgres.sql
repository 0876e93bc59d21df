-- Before the first event there is none: whoever writes it marks 0, below its number. A mark of 1 let readers pass the very
-- first event of a database while it was being written.
CREATE OR REPLACE FUNCTION {p}mark_events() RETURNS BIGINT LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  mine CONSTANT TEXT := 'mulligan.mark_' || {p}event_lock_base();
  seen TEXT := current_setting(mine, true);
BEGIN
  IF seen IS NULL OR seen = '' THEN
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO seen FROM {p}event_id_seq;
    PERFORM pg_advisory_xact_lock_shared({p}event_lock_base() + CAST(seen AS BIGINT)), set_config(mine, seen, true);
  END IF;
  RETURN CAST(seen AS BIGINT);
END $$;
