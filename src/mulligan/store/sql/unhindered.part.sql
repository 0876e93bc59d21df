-- What the worker believes is of now, nothing is closed, no guard is at work, and no operator has set a limit.
{p}now_us() BETWEEN CAST(:since AS bigint) AND CAST(:until AS bigint)
AND NOT EXISTS (SELECT FROM {p}gate WHERE until IS NULL OR until > {p}now_us() OR scope = 'dependency')
AND NOT EXISTS (SELECT FROM {p}guard WHERE active)
AND NOT EXISTS (SELECT FROM {p}limits WHERE until IS NULL OR until > {p}now_us())
