"""Schedules: jobs enqueued by the clock."""
