-- Statements about releases and their counters, where SQLite needs another form.
-- The macros are explained in storage/statements.py.

-- name: add_release_counts
-- Add to the counters of a kind. The first row of a release keeps the sums of all others.
INSERT INTO {p}release_kind AS known ({ReleaseKindRow})
SELECT :release, :kind, :now, :now, :attempts, :deaths, :starts, :failures,
       COALESCE(sum(attempts), 0), COALESCE(sum(starts), 0), COALESCE(sum(failures), 0), 0
FROM {p}release_kind WHERE kind = :kind AND release <> :release
ON CONFLICT (kind, release) DO UPDATE SET
  last_at = excluded.last_at, attempts = known.attempts + excluded.attempts, deaths = known.deaths + excluded.deaths,
  starts = known.starts + excluded.starts, failures = known.failures + excluded.failures
