"""Which jobs are meant, and what is different about the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from pydantic_core import PydanticSerializationError, to_jsonable_python

from mulligan.engine.batches import Batch
from mulligan.engine.moments import length
from mulligan.errors import Refused, Seconds
from mulligan.job import SECOND, Job, State, to_micros

ANY = "any"
FOREIGN = 1000  # a job of another kind is farther away than any of the same kind


class Wanted(TypedDict, total=False):
    """What a job is expected to be; nothing is said of what is left out."""

    payload: Mapping[str, Any]  # a part of it is enough
    queue: str
    owner: str
    priority: int
    unique: str
    batch: str | Batch
    delay: Seconds  # from its enqueue to its due time
    run_at: datetime
    within: Seconds  # how exactly delay and run_at are meant; 1 s
    state: str  # "queued" unless given; "any"


@dataclass(frozen=True)
class Wish:
    """A checked `Wanted`, with its kind; an empty kind is any but our own."""

    kind: str
    wanted: Wanted

    def __str__(self) -> str:
        state = self.wanted.get("state", State.QUEUED)
        parts = [f"{name} {value!r}" for name, value in self.wanted.items() if name not in {"state", "within"}]
        whose = f"job of kind {self.kind!r}" if self.kind else "job"
        return " ".join(
            [*([] if state == ANY else [f"{state}"]), whose, *(["with", ", ".join(parts)] if parts else [])]
        )

    def differences(self, job: Job) -> list[str]:
        return list(self._differences(job))

    def distance(self, job: Job) -> int:
        return (FOREIGN if self.kind and job.kind != self.kind else 0) + len(self.differences(job))

    def _differences(self, job: Job) -> Iterator[str]:
        wanted = self.wanted
        if self.kind and job.kind != self.kind:
            yield f"kind is {job.kind!r}"
        state = wanted.get("state", State.QUEUED.value)
        if state not in (ANY, job.state.value):
            yield f"state is {job.state}, not {state}"
        for name, value in _plain(job).items():
            if name in wanted and value != wanted[name]:  # type: ignore[literal-required]
                yield f"{name} is {value!r}, not {wanted[name]!r}"  # type: ignore[literal-required]
        yield from self._late(job)
        if "payload" in wanted:
            yield from _unlike("payload", job.payload, wanted["payload"])

    def _late(self, job: Job) -> Iterator[str]:
        slack = length("within", self.wanted.get("within", 1)) / SECOND
        delay = (job.run_at - job.created_at).total_seconds()
        if "delay" in self.wanted and abs(delay - length("delay", self.wanted["delay"]) / SECOND) > slack:
            yield f"delay is {round(delay, 1):g} s, not {self.wanted['delay']}"
        if "run_at" in self.wanted and abs((job.run_at - self.wanted["run_at"]).total_seconds()) > slack:
            yield f"run_at is {job.run_at.isoformat()}, not {self.wanted['run_at'].isoformat()}"


def checked(kind: str, wanted: Mapping[str, Any]) -> Wish:
    """Refused rather than silently never found."""
    for name in wanted:
        if name not in Wanted.__annotations__:
            message = f"a job cannot be told by {name!r}; there is {', '.join(Wanted.__annotations__)}"
            raise Refused(message)
    if not isinstance(wanted.get("payload", {}), Mapping):
        message = f"payload: a mapping of arguments by name, not {wanted['payload']!r:.80}"
        raise Refused(message)
    state = wanted.get("state", ANY)
    if state != ANY and state not in {s.value for s in State}:
        message = f"state: one of {', '.join(State)} or {ANY}, not {state!r}"
        raise Refused(message)
    for name in wanted.keys() & {"delay", "within"}:
        length(name, wanted[name])
    if "run_at" in wanted:
        _moment(wanted["run_at"])
    named = {"batch": getattr(wanted["batch"], "id", wanted["batch"])} if "batch" in wanted else {}
    return Wish(kind, Wanted(**{**wanted, **named}))  # type: ignore[typeddict-item]


def _moment(value: Any) -> None:
    if not isinstance(value, datetime):
        message = f"run_at: a datetime, not {value!r:.80}; for a length from its enqueue say delay="
        raise Refused(message)
    try:
        to_micros(value)
    except ValueError as error:
        message = f"run_at: {error}"
        raise Refused(message) from None


def _plain(job: Job) -> dict[str, Any]:
    return {
        "queue": job.queue,
        "owner": job.owner,
        "priority": job.priority,
        "unique": job.unique_key,
        "batch": job.batch_id,
    }


def _unlike(where: str, there: Any, wanted: Any) -> Iterator[str]:
    """Mappings may hold more than is asked for, at every level; all else is compared as JSON would write it."""
    if isinstance(wanted, Mapping) and isinstance(there, Mapping):
        for name, value in wanted.items():
            if name in there:
                yield from _unlike(f"{where}.{name}", there[name], value)
            else:
                yield f"{where} has no {name!r}"
    elif not _same(there, wanted):
        yield f"{where} is {there!r:.200}, not {wanted!r:.200}"


def _same(there: Any, wanted: Any) -> bool:
    if wanted == there:  # first, for things like `mock.ANY`
        return True
    try:
        return bool(to_jsonable_python(wanted) == there)
    except (PydanticSerializationError, ValueError):
        return False
