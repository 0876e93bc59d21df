-- Read a session or sign-in link that has not expired.
SELECT {session} FROM {p}session WHERE hash = :hash AND is_link = :is_link AND expires_at > :now
