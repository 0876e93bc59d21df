"""Which attempt runs here: what handlers log, start and trace belongs to it, on the loop and on threads alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mulligan.job import Lease

_CURRENT: ContextVar[Lease | None] = ContextVar("mulligan_attempt", default=None)


def attempt_now() -> Lease | None:
    return _CURRENT.get()


@contextmanager
def attempting(lease: Lease) -> Iterator[None]:
    before = _CURRENT.set(lease)
    try:
        yield
    finally:
        _CURRENT.reset(before)
