-- Who ends it gets it: of two that redeem one link, one.
DELETE FROM {p}session WHERE hash = :hash AND is_link = :is_link RETURNING {session}
