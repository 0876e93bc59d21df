-- Events that tell the same of many jobs at the same moment are one row. Its id is the last of theirs, `bundle` says how
-- many they are, and `data` has a line for each; see store/bundles.py. A job's story finds them by their moment.
ALTER TABLE {p}event ADD COLUMN bundle INTEGER;
CREATE INDEX {p}event_for_bundles ON {p}event (at) WHERE bundle IS NOT NULL;
