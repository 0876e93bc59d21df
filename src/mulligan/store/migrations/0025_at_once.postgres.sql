-- Who ran a job that succeeded at once. All else that is known of such an attempt stands in the job's row already, so it has
-- no row of its own; see at_once_attempt.part.sql.
ALTER TABLE {p}job ADD COLUMN ran_by TEXT;
