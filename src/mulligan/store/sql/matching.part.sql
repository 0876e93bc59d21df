-- One condition a line, by the name of its field; ? stands for a value, of several for each. Kinds of our own are shown
-- to who asks for them by name. Phases are those of policy/phase.py that follow from what is stored alone.
state: state = ?
kind: kind = ?
others: kind NOT LIKE 'mulligan.%'
queue: queue = ?
owner: owner = ?
batch_id: batch_id = ?
since: created_at >= :now - CAST(? AS BIGINT)
begun: created_at >= CAST(? AS BIGINT)
until: created_at <= CAST(? AS BIGINT) AND (finished_at IS NULL OR finished_at <= CAST(? AS BIGINT))
code: died_code = ?
class: died_class = ?
group: died_group = ?
near.id: id = ?
near.group: (state = 'dead' AND died_group = ?)
phase.held: state = 'queued' AND {part:held}
phase.scheduled: state = 'queued' AND attempt = 0 AND run_at > :now AND NOT {part:held}
phase.backing_off: state = 'queued' AND attempt > 0 AND run_at > :now AND NOT {part:held}
phase.running: state = 'running' AND cancel_reason IS NULL
phase.stopping: state = 'running' AND cancel_reason IS NOT NULL
phase.parked: state = 'parked'
phase.succeeded: state = 'succeeded'
phase.dead: state = 'dead'
phase.cancelled: state = 'cancelled'
