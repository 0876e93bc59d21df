"""Mulligan, the systems people would otherwise pick, and what the database alone can do: the same cases, by turns."""
