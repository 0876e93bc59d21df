-- Delete a session or sign-in link and return it. Of two requests with one link, one gets the row.
DELETE FROM {p}session WHERE hash = :hash AND is_link = :is_link RETURNING {session}
