-- Record that a manifest in use still declares a schedule.
UPDATE {p}schedule SET declared_at = :now WHERE name = :name
