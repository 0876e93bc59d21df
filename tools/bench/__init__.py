"""Measurements of Mulligan against itself and against plain SQL on the same machine, in the same run."""
