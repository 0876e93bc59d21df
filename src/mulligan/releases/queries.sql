-- Statements about releases and their counters.
-- The macros are explained in storage/statements.py.

-- name: note_release
-- Record that a worker of a release has started.
INSERT INTO {p}release AS known (name, first_at, last_at) VALUES (:name, :now, :now)
ON CONFLICT (name) DO UPDATE SET last_at = excluded.last_at

-- name: list_releases
-- List the releases, the newest first.
SELECT {ReleaseRow} FROM {p}release ORDER BY first_at DESC, name LIMIT :limit

-- name: list_release_counts
-- List the counters of all kinds.
SELECT {ReleaseKindRow} FROM {p}release_kind ORDER BY kind, first_at, release

-- name: list_release_counts_of_kinds
-- List the counters of some kinds.
SELECT {ReleaseKindRow} FROM {p}release_kind WHERE kind {in:kinds} ORDER BY kind, first_at, release

-- name: count_kinds_of_release
-- Count the kinds of a release that have started jobs.
SELECT count(*) FROM {p}release_kind WHERE release = :release AND starts > 0

-- name: add_canary_claims
-- Count jobs that canary workers have claimed.
UPDATE {p}release_kind SET claimed = claimed + :jobs WHERE release = :release AND kind = :kind

-- name: list_live_kinds
-- List the releases and kinds (JSON) of the workers that claim jobs.
SELECT DISTINCT release, kinds FROM {p}worker WHERE closed_at IS NULL AND NOT draining AND drain_reason IS NULL

-- name: count_live_workers_by_release
-- Count the live workers of each release.
SELECT release, count(*) FROM {p}worker WHERE closed_at IS NULL GROUP BY release

-- name: delete_expired_release_holds
-- Delete holds of releases that have ended.
DELETE FROM {p}gate WHERE scope = 'release' AND until < :before

-- name: releases_of_workers
-- Read the releases of workers.
SELECT id, release FROM {p}worker WHERE id {in:ids}

-- name: delete_old_releases
-- Delete releases that ran nothing for long, and the oldest of too many.
DELETE FROM {p}release
WHERE name IN (
  SELECT name FROM {p}release AS old
  WHERE (last_at < :before OR first_at < (SELECT first_at FROM {p}release ORDER BY first_at DESC LIMIT 1 OFFSET :most))
    AND NOT EXISTS (SELECT 1 FROM {p}worker AS w WHERE w.closed_at IS NULL AND w.release = old.name))

-- name: delete_old_release_counts
-- Delete the counters of releases that are gone.
DELETE FROM {p}release_kind WHERE release NOT IN (SELECT name FROM {p}release)
