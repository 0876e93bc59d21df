-- Delete the states of failure groups that have no dead job left.
DELETE FROM {p}failure_group WHERE at < :before
  AND NOT EXISTS (SELECT 1 FROM {p}job WHERE state = 'dead' AND died_group = {p}failure_group.fingerprint)
RETURNING fingerprint
