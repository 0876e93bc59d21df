-- Locked: who claims what is limited waits for the others who do.
SELECT tokens, at FROM {p}meter WHERE scope = :scope AND key = :key FOR UPDATE
