-- Delete one schedule.
DELETE FROM {p}schedule WHERE name = :name RETURNING name
