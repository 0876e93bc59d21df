"""Exception class that stands for ends of an attempt in which no exception was raised."""

from __future__ import annotations


class AttemptFailed(Exception):
    """A time limit, a killed process, a lost worker, a deadline or a cancellation."""
