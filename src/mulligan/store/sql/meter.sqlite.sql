SELECT tokens, at FROM {p}meter WHERE scope = :scope AND key = :key
