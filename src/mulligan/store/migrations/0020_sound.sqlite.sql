-- What must hold of a job in each state, in one constraint instead of six: they were half of the cost of every claim and
-- of every ending. SQLite cannot change a constraint otherwise; nothing is checked anew, since all of it held before.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = substr(sql, 1, instr(sql, 'CONSTRAINT job_state') - 1)
  || 'CONSTRAINT job_sound CHECK (CASE state
    WHEN ''running'' THEN worker IS NOT NULL AND finished_at IS NULL AND result IS NULL AND error IS NULL AND choices IS NULL
    WHEN ''succeeded'' THEN worker IS NULL AND finished_at IS NOT NULL AND error IS NULL AND choices IS NULL
    WHEN ''queued'' THEN worker IS NULL AND finished_at IS NULL AND result IS NULL AND error IS NULL AND choices IS NULL
    WHEN ''dead'' THEN worker IS NULL AND finished_at IS NOT NULL AND result IS NULL AND error IS NOT NULL AND choices IS NULL
    WHEN ''cancelled'' THEN worker IS NULL AND finished_at IS NOT NULL AND result IS NULL AND error IS NULL AND choices IS NULL
    WHEN ''parked'' THEN worker IS NULL AND finished_at IS NULL AND result IS NULL AND error IS NULL
    ELSE 0 END),
  ' || substr(sql, instr(sql, 'CONSTRAINT job_priority'))
WHERE type = 'table' AND name = '{p}job';
PRAGMA writable_schema = RESET;
-- Every connection reads the schema anew when its number has changed.
CREATE VIEW {p}bump AS SELECT 1;
DROP VIEW {p}bump;
