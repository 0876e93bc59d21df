-- Condition: the worker's knowledge is current, and no gate, guard or operator's limit is in force.
-- An expired gate of a dependency counts as in force: it must be reopened along a ramp.
{p}now_us() BETWEEN CAST(:since AS bigint) AND CAST(:until AS bigint)
AND NOT EXISTS (SELECT FROM {p}gate WHERE until IS NULL OR until > {p}now_us() OR scope = 'dependency')
AND NOT EXISTS (SELECT FROM {p}guard WHERE active)
AND NOT EXISTS (SELECT FROM {p}limits WHERE until IS NULL OR until > {p}now_us())
