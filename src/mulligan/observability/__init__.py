"""Metrics, logs and traces. Best effort: nothing here decides or delays a job."""
