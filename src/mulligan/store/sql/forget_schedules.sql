DELETE FROM {p}schedule WHERE named_at < :before RETURNING name
