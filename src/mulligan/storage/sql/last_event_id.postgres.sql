-- Read the last event id that was drawn, committed or not.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {p}event_id_seq
