-- List the states of failure groups of one scope.
SELECT {mark} FROM {p}failure_group WHERE scope = :scope
