"""Priorities: Django's -100 to 100, larger first, and Mulligan's 9 to -9, smaller first."""

from __future__ import annotations

from mulligan.jobs.options import MAX_PRIORITY

DJANGO_MAX_PRIORITY = 100


def mulligan_priority(priority: int) -> int:
    """Return one of the 19 priorities of Mulligan: about 11 of Django's have the same one."""
    return -round(priority * MAX_PRIORITY / DJANGO_MAX_PRIORITY)


def django_priority(priority: int) -> int:
    """Return the priority in the middle of those that Mulligan runs with this one."""
    return -round(priority * DJANGO_MAX_PRIORITY / MAX_PRIORITY)
