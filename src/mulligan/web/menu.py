"""The screens there are, in the order in which one looks for them."""

from __future__ import annotations

from typing import NamedTuple


class Screen(NamedTuple):
    name: str
    path: str
    title: str
    icon: str


MENU: tuple[tuple[str, tuple[Screen, ...]], ...] = (
    (
        "Now",
        (
            Screen("overview", "/", "Overview", "◉"),
            Screen("failures", "/failures", "Failures", "✕"),
            Screen("jobs", "/jobs", "Jobs", "≣"),
            Screen("batches", "/batches", "Batches", "▤"),
        ),
    ),
    (
        "Machinery",
        (
            Screen("queues", "/queues", "Queues and workers", "⇶"),
            Screen("dependencies", "/dependencies", "Dependencies", "⊗"),
            Screen("operations", "/operations", "Operations", "⚙"),
            Screen("schedules", "/schedules", "Schedules", "◷"),
        ),
    ),
    (
        "Knowledge",
        (
            Screen("alerts", "/alerts", "Alerts", "▲"),
            Screen("notifications", "/notifications", "Notifications", "✉"),
            Screen("insight", "/insight", "Insight", "▥"),
            Screen("policies", "/policies", "Policies", "↻"),
            Screen("events", "/events", "Events", "∿"),
            Screen("audit", "/audit", "Audit", "✎"),
            Screen("doctor", "/doctor", "Doctor", "✚"),
        ),
    ),
)
