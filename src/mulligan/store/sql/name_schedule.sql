UPDATE {p}schedule SET named_at = :now WHERE name = :name
