"""What a job is connected with: its batch, its cause, who made it, what it made, what was done with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

from mulligan.ids import LENGTH
from mulligan.job import State
from mulligan.web.desk import Visited
from mulligan.web.reading import Story

CHILDREN = 20


class Relation(NamedTuple):
    what: str
    words: str
    link: str


def relations(desk: Visited, found: Story) -> list[Relation]:
    return [*_before(desk, found), *_around(desk, found), *_after(desk, found)]


def _before(desk: Visited, found: Story) -> Iterator[Relation]:
    """A key that begins with the id of a job or a batch was made by it."""
    maker, colon, _ = (found.row.unique_key or "").partition(":")
    if colon and len(maker) == LENGTH and maker.isalnum():
        with desk.store.read() as unit:
            parent, batch = unit.get(maker), unit.batch(maker)
        if parent is not None and desk.owner in (None, parent.owner):
            yield Relation("made by", f"{parent.kind} {parent.id}", f"/jobs/{parent.id}")
        if batch is not None and desk.owner in (None, batch.owner):
            yield Relation("follows batch", batch.name or batch.id, f"/batches/{batch.id}")
    schedules = [str(event.data["schedule"]) for event in found.events if event.data.get("schedule")]
    for name in dict.fromkeys(schedules):
        yield Relation("schedule", name, "/schedules")


def _around(desk: Visited, found: Story) -> Iterator[Relation]:
    row = found.row
    if row.batch_id is not None:
        with desk.store.read() as unit:
            batch = unit.batch(row.batch_id)
        name = row.batch_id if batch is None or not batch.name else batch.name
        yield Relation(
            "batch", name, f"/batches/{row.batch_id}" if batch is not None else _jobs(f"batch:{row.batch_id}")
        )
    group = next((one.fingerprint for one in reversed(found.attempts) if one.fingerprint), None)
    if group is not None and row.state == State.DEAD:
        yield Relation("died of", group, f"/failures/{quote(group, safe='')}")
    yield from (Relation("uses", key, "/dependencies") for key in found.job.uses)


def _after(desk: Visited, found: Story) -> Iterator[Relation]:
    operations = [str(event.data["operation"]) for event in found.events if event.data.get("operation")]
    for operation in dict.fromkeys(operations):
        yield Relation("operation", operation, f"/operations/{operation}")
    with desk.store.read() as unit:
        children = [unit.get(one) for one in unit.find_keys(f"{found.job.id}:", CHILDREN)]
    for child in children:
        if child is not None and desk.owner in (None, child.owner):
            yield Relation("made", f"{child.kind} {child.state}", f"/jobs/{child.id}")


def _jobs(words: str) -> str:
    return f"/jobs?filter={quote(words)}"
