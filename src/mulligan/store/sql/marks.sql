SELECT {mark} FROM {p}failure_group WHERE scope = :scope
