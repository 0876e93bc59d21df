"""Which attempt runs here: what handlers log, start and trace belongs to it, on the loop and on threads alike."""

from __future__ import annotations

from contextvars import ContextVar

from mulligan.core.attempt import Lease

_CURRENT: ContextVar[Lease | None] = ContextVar("mulligan_attempt", default=None)

attempt_now = _CURRENT.get
begin_attempt = _CURRENT.set  # returns what `end_attempt` is given; a context manager would cost each job a call more
end_attempt = _CURRENT.reset
