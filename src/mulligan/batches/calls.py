"""Calls of kinds as child jobs: what a handler passes to `ctx.gather`. No database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from mulligan.core.errors import Refused
from mulligan.core.job import NewJob

MAX_CHILDREN = 1_000
ON_DEATH_FAIL = "fail"
ON_DEATH_WAIT = "wait"
# Fields of a child that the settlement gives it.
OWN_FIELDS = ("id", "unique_key", "unique_hash", "unique_cover", "batch_id", "added_by", "trace")


class ChildCall(Protocol):
    """A call of a kind as a child job. `kind.call(…)` makes one."""

    def build(self, owner: str) -> NewJob:
        """Return the job. It belongs to the owner of its parent unless it has one."""


class ChildKind(Protocol):
    """A kind whose jobs may be child jobs."""

    @property
    def call(self) -> Callable[..., ChildCall]:
        """Return a call with these arguments."""


def build_children(name: str, calls: Iterable[ChildCall], owner: str) -> list[NewJob]:
    """Return the jobs of calls. Raise Refused for too many, or for what is no call."""
    found = list(calls)
    if len(found) > MAX_CHILDREN:
        raise Refused(
            f"gather {name!r:.80}: {len(found):,} child jobs; the limit is {MAX_CHILDREN:,}. "
            "Use a batch with on_complete."
        )
    for call in found:
        if not hasattr(call, "build"):
            raise Refused(
                f"gather {name!r:.80}: pass a list of calls such as [resize.call(width=200)], "
                f"not {call!r:.80}"
            )
    return [call.build(owner) for call in found]


def check_on_death(value: Any) -> str:
    """Return what happens after the death of children that must not die."""
    if value not in (ON_DEATH_FAIL, ON_DEATH_WAIT):
        raise Refused(f'on_death is "{ON_DEATH_FAIL}" or "{ON_DEATH_WAIT}", not {value!r:.80}')
    return str(value)


def dump_children(jobs: Sequence[NewJob]) -> list[dict[str, Any]]:
    """Return child jobs as JSON values, which an attempt sends with its end."""
    return [
        {name: value for name, value in job._asdict().items() if name not in OWN_FIELDS}
        for job in jobs
    ]
