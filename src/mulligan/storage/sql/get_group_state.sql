-- Read the state of one failure group.
SELECT {failure_group} FROM {p}failure_group WHERE scope = :scope AND fingerprint = :fingerprint
