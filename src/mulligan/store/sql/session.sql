SELECT {session} FROM {p}session WHERE hash = :hash AND is_link = :is_link AND expires_at > :now
