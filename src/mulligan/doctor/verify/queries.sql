-- Statements of `doctor --verify`, which reads everything page by page.
-- The macros are explained in storage/statements.py.

-- name: list_whole_jobs
-- Read jobs in order of id, for `doctor --verify`.
SELECT {JobRow}, announced, unique_until, must_have FROM {p}job WHERE id > :after ORDER BY id LIMIT :limit

-- name: list_attempts_of_jobs
-- List the attempts of several jobs in order.
SELECT {AttemptRow} FROM {p}attempt WHERE job_id {in:ids}
UNION ALL {part:first_attempt_row} AND id {in:ids}
ORDER BY 1, 2

-- name: list_checkpoints
-- List what the attempts of jobs saved, without the values. The end of a call is saved by its children.
SELECT job_id, name, token, COALESCE(ended_at, started_at) AS at FROM {p}step
WHERE job_id {in:ids} AND actor = '' AND state <> 'waiting' AND kind <> 'call' ORDER BY job_id, name

-- name: list_batches_by_id
-- List batches in order of id, for `doctor --verify`.
SELECT {BatchRow} FROM {p}batch AS definition JOIN {p}batch_progress AS progress USING (id)
WHERE id > :after ORDER BY id LIMIT :limit

-- name: list_slots
-- List slots of schedules in order, for `doctor --verify`.
SELECT schedule, slot, job_id FROM {p}slot WHERE (schedule, slot) > (:schedule, CAST(:slot AS BIGINT))
ORDER BY schedule, slot LIMIT :limit

-- name: find_prune_records
-- Find records of retention whose range of ids contains this job id.
SELECT kind, first_id, last_id FROM {p}pruned WHERE first_id <= :id AND last_id >= :id

-- name: list_pruned_kinds
-- List kinds of which retention removed jobs, with the last time.
SELECT kind, max(at) FROM {p}pruned GROUP BY kind

-- name: count_running_since
-- Count running jobs that started after a time, by queue and dependencies.
SELECT queue, uses, count(*) FROM {p}job WHERE state = 'running' AND started_at > :since GROUP BY queue, uses
