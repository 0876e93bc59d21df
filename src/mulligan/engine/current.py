"""Which attempt runs here: what handlers log, start and trace belongs to it, on the loop and on threads alike."""

from __future__ import annotations

from contextvars import ContextVar

from mulligan.job import Lease

_CURRENT: ContextVar[Lease | None] = ContextVar("mulligan_attempt", default=None)


def attempt_now() -> Lease | None:
    return _CURRENT.get()


class attempting:  # noqa: N801 - used as a function; a generator would cost each job three times as much
    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def __enter__(self) -> None:
        self._before = _CURRENT.set(self._lease)

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._before)
