-- Test whether an attempt is still running.
SELECT 1 FROM {p}job WHERE id = :id AND token = :token AND state = 'running'
