-- Read the state of one failure group.
SELECT {mark} FROM {p}failure_group WHERE scope = :scope AND fingerprint = :fingerprint
