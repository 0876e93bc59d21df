"""Waits without a slot: for a time, for an answer, and for child jobs."""
