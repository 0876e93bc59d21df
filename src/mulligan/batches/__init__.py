"""Batches: jobs with a common outcome."""
