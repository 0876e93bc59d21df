"""A page of jobs and a count, which say themselves when they are not the whole answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from mulligan.job import Job
from mulligan.store.skimming import Counted, Skimmed


class JobList(list[Job]):
    """Jobs, newest first.

    `cursor`: say it as `before` for what comes after; None: this was the end. `partial`: looking stopped after 50,000
    jobs, before the page was full; from `cursor` on there may be more that match.
    """

    cursor: str | None = None
    partial: bool = False


class Count(int):
    """How many. `capped`: counting stopped there. `partial`: looking stopped after 50,000 jobs; there may be more."""

    capped: bool
    partial: bool

    def __new__(cls, value: int, *, capped: bool = False, partial: bool = False) -> Self:
        made = super().__new__(cls, value)
        made.capped, made.partial = capped, partial
        return made


def job_list(jobs: Iterable[Job], found: Skimmed, limit: int) -> JobList:
    made = JobList(jobs)
    made.partial = found.stopped is not None
    made.cursor = found.stopped or (made[-1].id if len(made) >= limit else None)
    return made


def counted(found: Counted, cap: int) -> Count:
    return Count(found.jobs, capped=found.jobs >= cap, partial=found.stopped is not None)
