SELECT {subscription} FROM {p}subscription ORDER BY id
