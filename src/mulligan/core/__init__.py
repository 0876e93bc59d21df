"""Value types and small pure helpers that every other package may import."""
