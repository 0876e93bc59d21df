-- Delete events in a range of ids, except actions of people.
DELETE FROM {p}event WHERE id > :floor AND id <= :top AND NOT ({part:is_audit_event}) RETURNING id
