-- Statements about releases and their counters, where PostgreSQL needs another form.
-- The macros are explained in storage/statements.py.

-- name: add_release_counts
-- Add to the counters of kinds. The first row of a release keeps the sums of all others.
-- Sorted by kind, so that two workers lock rows in the same order.
INSERT INTO {p}release_kind AS known ({ReleaseKindRow})
SELECT i.release, i.kind, {p}now_us(), {p}now_us(), i.attempts, i.deaths, i.starts, i.failures,
       base.attempts, base.starts, base.failures, 0
FROM {set:ReleaseDelta} CROSS JOIN LATERAL (
  SELECT COALESCE(sum(attempts), 0) AS attempts, COALESCE(sum(starts), 0) AS starts, COALESCE(sum(failures), 0) AS failures
  FROM {p}release_kind AS other WHERE other.kind = i.kind AND other.release <> i.release
) AS base
ORDER BY i.kind COLLATE "C"
ON CONFLICT (kind, release) DO UPDATE SET
  last_at = excluded.last_at, attempts = known.attempts + excluded.attempts, deaths = known.deaths + excluded.deaths,
  starts = known.starts + excluded.starts, failures = known.failures + excluded.failures
