"""Outcomes on demand: how the next attempts of a kind end, without a call of its handler."""

from __future__ import annotations

import difflib
import inspect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from mulligan.app import Mulligan
from mulligan.core.attempt import Ended, Lease, Outcome
from mulligan.engine.kinds import Handler
from mulligan.errors import Refused
from mulligan.job import SECOND
from mulligan.policy.ends import timed_out, worker_lost
from mulligan.testing.words import Named, name_of


@dataclass(frozen=True)
class Returns:
    """For `force`: the attempt succeeds with this result."""

    value: Any = None


Ending = Handler | Outcome
Script = Callable[[Handler, Lease], Ending]


class Force:
    """In force from the moment it is made until it is used up, undone, or its `with` block ends."""

    def __init__(self, app: Mulligan, kind: str, scripts: list[Script]) -> None:
        self.kind = kind
        self.used = 0  # how many attempts it has ended
        self._scripts = deque(scripts)
        self._stand_ins = app.registry.stand_ins
        self._stand_ins.append(self._stand_in)

    @property
    def left(self) -> int:
        """How many attempts are still to end this way."""
        return len(self._scripts)

    def undo(self) -> None:
        if self._stand_in in self._stand_ins:
            self._stand_ins.remove(self._stand_in)

    def _stand_in(self, handler: Handler, lease: Lease) -> Ending | None:
        if lease.kind != self.kind or not self._scripts:
            return None
        self.used += 1
        return self._scripts.popleft()(handler, lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def force(app: Mulligan, kind: Named, *endings: Any, times: int = 1) -> Force:
    """Make the next attempts of this kind end so, one after the other, then call the handler again.

    An ending is an outcome (`Fail("GW_5XX")`, `Retry()`, `Snooze(60)`, `Park("…")`, `Hold("gateway")`, `Cancel("…")`),
    an exception (an instance or a class), `Returns(value)`, "timeout" (the attempt ran into its time limit) or "lost"
    (its worker died). `times` repeats the whole row. The rest is as always: the same table judges, the same policy
    decides, the same door settles.

    It acts on what this process runs inline (`drain`, `app.run_inline`), not on workers.
    """
    name = app.registry.get(name_of(kind)).spec.name
    given: Any = times
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        message = f"force(times): a whole number above 0, not {given!r}"
        raise Refused(message)
    flat = [one for ending in endings for one in (ending if isinstance(ending, list | tuple) else [ending])]
    if not flat:
        message = f"force({name!r}): say how its next attempts shall end"
        raise Refused(message)
    return Force(app, name, [_script(ending) for ending in flat] * times)


def _script(ending: Any) -> Script:
    if isinstance(ending, str) and ending in _WITHOUT_CODE:
        return _WITHOUT_CODE[ending]
    if isinstance(ending, Returns):
        return lambda handler, _: _calls(handler, lambda: ending.value)
    if isinstance(ending, BaseException) or (inspect.isclass(ending) and issubclass(ending, BaseException)):
        return lambda handler, _: _calls(handler, lambda: _raise(ending))
    raise Refused(_unknown(ending))


def _calls(handler: Handler, instead: Callable[[], Any]) -> Handler:
    """The same kind with another body: arguments, cost and result are treated as ever."""
    return replace(handler, call=lambda **_: instead(), is_async=False, done=None, can_retry=None)


def _raise(error: Any) -> None:
    raise error


def _timeout(handler: Handler, lease: Lease) -> Outcome:
    limit = (lease.timeout or handler.spec.timeout) / SECOND
    return Outcome(Ended.FAILED, failure=timed_out(limit))


def _lost(_: Handler, lease: Lease) -> Outcome:
    return Outcome(Ended.LOST, failure=worker_lost(lease.worker))


_WITHOUT_CODE: dict[str, Script] = {"timeout": _timeout, "lost": _lost}


def _unknown(ending: Any) -> str:
    near = difflib.get_close_matches(ending, _WITHOUT_CODE, n=1) if isinstance(ending, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"force: {ending!r:.80} is no ending; give an outcome (Fail, Retry, Snooze, Park, Hold, Cancel), an exception, "
        f"Returns(value), 'timeout' or 'lost'{hint}"
    )
