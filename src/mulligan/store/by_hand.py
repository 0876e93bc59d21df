"""Verbs for what people do: whose a key is, who did what, and how long that is remembered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.event import Event
from mulligan.job import Micros
from mulligan.store.rows import event_of


class Asked(NamedTuple):
    """Which actions; None: whichever."""

    actor: str | None = None
    owner: str | None = None
    job_id: str | None = None
    since: Micros | None = None
    until: Micros | None = None
    before: int | None = None  # below this id


class ByHand(ABC):
    """Part of every `Unit`."""

    @abstractmethod
    def key_holder(self, unique_hash: str) -> str | None:
        """The job that holds this key; None: nobody, or one whose time is over."""

    @abstractmethod
    def free_key(self, unique_hash: str) -> bool:
        """Take a key from a holder whose time is over. False: it is held, or by nobody."""

    @abstractmethod
    def deeds(self, asked: Asked, types: tuple[str, ...], limit: int) -> list[Event]:
        """What people did, newest first; `types`: any of these, or, of none, all."""

    @abstractmethod
    def events_floor(self) -> int:
        """Up to this id only what people did is left of the events; 0: all are there."""

    @abstractmethod
    def prune_events(self, before: Micros, limit: int) -> int:
        """Delete events from before then, but not what people did; `limit`: how many are looked at."""

    @abstractmethod
    def prune_deeds(self, before: Micros, limit: int) -> int:
        """Delete what people did before then."""

    @abstractmethod
    def forget_meters(self, before: Micros) -> None:
        """Delete meters of owners that nobody has used since."""


class SqlByHand(ByHand):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def now(self) -> Micros: ...

    @abstractmethod
    def ids(self, ids: Sequence[str]) -> Any: ...

    def key_holder(self, unique_hash: str) -> str | None:
        held = self.rows("unique_holder", unique_hash=unique_hash)
        return held[0][0] if held and (held[0][2] is None or held[0][2] > self.now()) else None

    def free_key(self, unique_hash: str) -> bool:
        held = self.rows("unique_holder", unique_hash=unique_hash)
        if not held or held[0][2] is None or held[0][2] > self.now():
            return False
        self.rows("unique_free", id=held[0][0], unique_hash=unique_hash)
        return True

    def deeds(self, asked: Asked, types: tuple[str, ...], limit: int) -> list[Event]:
        named = self.ids(types)
        rows = self.rows("deeds", **asked._asdict(), types=named, whatever=not types, most=limit)
        return [event_of(row) for row in rows]

    def events_floor(self) -> int:
        return next((int(row[0]) for row in self.rows("events_floor")), 0)

    def prune_events(self, before: Micros, limit: int) -> int:
        """From where the last one got to: what people did stays behind, and is not looked at each time again."""
        floor = self.events_floor()
        oldest = self.rows("oldest_events", floor=floor, most=limit)
        young = next((place for place, (_, at) in enumerate(oldest) if at >= before), len(oldest))
        if not young:
            return 0
        top = oldest[young - 1][0]
        gone = self.rows("prune_events", floor=floor, top=top)
        self.rows("lift_events_floor", floor=str(top))
        return len(gone)

    def prune_deeds(self, before: Micros, limit: int) -> int:
        return len(self.rows("prune_deeds", before=before, most=limit))

    def forget_meters(self, before: Micros) -> None:
        self.rows("forget_meters", before=before)
