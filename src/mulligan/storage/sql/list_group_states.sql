-- List the states of failure groups of one scope.
SELECT {failure_group} FROM {p}failure_group WHERE scope = :scope
