-- Conditions of job filters, one per line: the name of the field, a colon, the SQL.
-- ? stands for the parameter; a field with several values gets one condition each, joined by OR.
-- {+} becomes `+` where SQLite must not use the index of the column because another one is better.
-- Mulligan's own kinds are left out unless the filter names them. The lane of a queued job contains
-- its kind, so that counting reads only the index job_for_claim.
-- The phases here are those of jobs/why.py that follow from stored values alone.
state: {+}state = ?
kind: {+}kind = ?
others: kind NOT LIKE 'mulligan.%'
waiting_others: lane NOT LIKE '%|mulligan.%'
queue: {+}queue = ?
owner: {+}owner = ?
owned: owner <> ''
batch_id: {+}batch_id = ?
since: created_at >= :now - CAST(? AS BIGINT)
begun: created_at >= CAST(? AS BIGINT)
until: created_at <= CAST(? AS BIGINT) AND (finished_at IS NULL OR finished_at <= CAST(? AS BIGINT))
from: id >= ?
code: {+}died_code = ?
class: {+}died_class = ?
group: {+}died_group = ?
near.id: {+}id = ?
near.group: ({+}state = 'dead' AND {+}died_group = ?)
phase.held: {+}state = 'queued' AND {part:held_by_gate}
phase.scheduled: {+}state = 'queued' AND attempt = 0 AND run_at > :now AND NOT {part:held_by_gate}
phase.backing_off: {+}state = 'queued' AND attempt > 0 AND run_at > :now AND NOT {part:held_by_gate}
phase.running: {+}state = 'running' AND cancel_reason IS NULL
phase.stopping: {+}state = 'running' AND cancel_reason IS NOT NULL
phase.parked: {+}state = 'parked'
phase.succeeded: {+}state = 'succeeded'
phase.dead: {+}state = 'dead'
phase.cancelled: {+}state = 'cancelled'
indexed: EXISTS (SELECT 1 FROM {p}job_arg AS arg WHERE arg.name = ?_name AND arg.value = ?_value AND arg.job_id = id)
arg.sqlite: instr(payload, ?) > 0
arg.postgres: strpos(payload, ?) > 0
-- Subqueries that select the ids of matching jobs, for filters that gather them first.
in.state: SELECT id FROM {p}job WHERE state = ?
in.code: SELECT id FROM {p}job WHERE state = 'dead' AND died_code = ?
in.group: SELECT id FROM {p}job WHERE state = 'dead' AND died_group = ?
in.near.id: SELECT CAST(? AS TEXT)
in.near.group: SELECT id FROM {p}job WHERE state = 'dead' AND died_group = ?
in.indexed: SELECT job_id FROM {p}job_arg WHERE name = ?_name AND value = ?_value AND job_id < :before AND job_id >= :floor
