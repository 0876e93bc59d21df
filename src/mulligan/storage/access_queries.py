"""Verbs for what people do: whose a key is, who did what, and how long that is remembered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.event import Event
from mulligan.core.job import Micros
from mulligan.storage.rows import event_of

# Verbs of API keys, and of the answers that are kept for those who ask twice.


class KeyRow(NamedTuple):
    """Who may ask over HTTP; the key itself is nowhere."""

    id: str
    hash: str
    name: str
    scope: str  # one owner, or "*"
    role: str
    created_at: Micros
    created_by: str
    expires_at: Micros | None
    last_used_at: Micros | None
    revoked_at: Micros | None


class AnswerRow(NamedTuple):
    """What was answered to a request that named itself."""

    request: str  # a hash of all it said
    status: int | None  # None: it is being worked on
    body: str


class KeyQueries(ABC):
    """Part of every `Unit`."""

    @abstractmethod
    def new_api_key(self, row: KeyRow) -> None: ...

    @abstractmethod
    def api_key(self, key_id: str) -> KeyRow | None: ...

    @abstractmethod
    def api_keys(self) -> list[KeyRow]:
        """All of them, oldest first."""

    @abstractmethod
    def revoke_api_key(self, key_id: str) -> KeyRow | None:
        """As it is now; None: there is none, or it was revoked before."""

    @abstractmethod
    def use_api_key(self, key_id: str) -> None:
        """It was used just now."""

    @abstractmethod
    def forget_api_keys(self, before: Micros) -> None:
        """Delete keys that have let nobody in since then."""

    @abstractmethod
    def take_answer(self, key_id: str, name: str, request: str, before: Micros) -> bool:
        """Is it ours to answer this? Also if somebody began before then and never ended."""

    @abstractmethod
    def answer(self, key_id: str, name: str) -> AnswerRow | None: ...

    @abstractmethod
    def end_answer(self, key_id: str, name: str, status: int, body: str) -> None: ...

    @abstractmethod
    def drop_answer(self, key_id: str, name: str) -> None:
        """Nothing was done: whoever asks again is not asking twice."""

    @abstractmethod
    def prune_answers(self, before: Micros, limit: int) -> int: ...


class SqlKeyQueries(KeyQueries):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def new_api_key(self, row: KeyRow) -> None:
        self.rows("new_api_key", **row._asdict())

    def api_key(self, key_id: str) -> KeyRow | None:
        found = self.rows("api_key", id=key_id)
        return KeyRow._make(found[0]) if found else None

    def api_keys(self) -> list[KeyRow]:
        return [KeyRow._make(row) for row in self.rows("api_keys")]

    def revoke_api_key(self, key_id: str) -> KeyRow | None:
        found = self.rows("revoke_api_key", id=key_id)
        return KeyRow._make(found[0]) if found else None

    def use_api_key(self, key_id: str) -> None:
        self.rows("use_api_key", id=key_id)

    def forget_api_keys(self, before: Micros) -> None:
        self.rows("forget_api_keys", before=before)

    def take_answer(self, key_id: str, name: str, request: str, before: Micros) -> bool:
        return bool(
            self.rows("take_answer", key_id=key_id, name=name, request=request, before=before)
        )

    def answer(self, key_id: str, name: str) -> AnswerRow | None:
        found = self.rows("answer", key_id=key_id, name=name)
        return AnswerRow._make(found[0]) if found else None

    def end_answer(self, key_id: str, name: str, status: int, body: str) -> None:
        self.rows("end_answer", key_id=key_id, name=name, status=status, body=body)

    def drop_answer(self, key_id: str, name: str) -> None:
        self.rows("drop_answer", key_id=key_id, name=name)

    def prune_answers(self, before: Micros, limit: int) -> int:
        return len(self.rows("prune_answers", before=before, most=limit))


# Verbs of who is signed in to the dashboard.


class SessionRow(NamedTuple):
    """Somebody who is signed in, or a link that signs somebody in once; what proves it is nowhere."""

    hash: str
    is_link: bool
    key_id: str | None  # the key they signed in with; None: by a link
    scope: str
    role: str
    created_at: Micros
    expires_at: Micros


class SessionQueries(ABC):
    """Part of every `Unit`."""

    @abstractmethod
    def new_session(self, row: SessionRow) -> None: ...

    @abstractmethod
    def session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - the column's name
        """None: there is none, or its time is over."""

    @abstractmethod
    def end_session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - as above
        """As it was; None: there is none any more."""

    @abstractmethod
    def forget_sessions(self, before: Micros) -> None:
        """Delete those whose time was over then."""

    @abstractmethod
    def secret(self) -> str:
        """What signs links to status pages; empty: there is none yet."""

    @abstractmethod
    def keep_secret(self, value: str) -> str:
        """Unless there is one; the one that is there then."""


class SqlSessionQueries(SessionQueries):
    @abstractmethod
    def rows(self, verb: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def new_session(self, row: SessionRow) -> None:
        self.rows("new_session", **row._asdict())

    def session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - as above
        return _one(self.rows("session", hash=hash, is_link=is_link))

    def end_session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - as above
        return _one(self.rows("end_session", hash=hash, is_link=is_link))

    def forget_sessions(self, before: Micros) -> None:
        self.rows("forget_sessions", before=before)

    def secret(self) -> str:
        found = self.rows("secret")
        return str(found[0][0]) if found else ""

    def keep_secret(self, value: str) -> str:
        self.rows("keep_secret", value=value)
        return self.secret()


def _one(found: list[tuple[Any, ...]]) -> SessionRow | None:
    return SessionRow._make(found[0])._replace(is_link=bool(found[0][1])) if found else None


# Verbs for what people do: whose a key is, who did what, and how long that is remembered.


class AuditFilter(NamedTuple):
    """Which actions; None: whichever."""

    actor: str | None = None
    owner: str | None = None
    job_id: str | None = None
    since: Micros | None = None
    until: Micros | None = None
    before: int | None = None  # below this id


class AuditQueries(ABC):
    """Part of every `Unit`."""

    @abstractmethod
    def key_holder(self, unique_hash: str) -> str | None:
        """The job that holds this key; None: nobody, or one whose time is over."""

    @abstractmethod
    def free_key(self, unique_hash: str) -> bool:
        """Take a key from a holder whose time is over. False: it is held, or by nobody."""

    @abstractmethod
    def deeds(self, asked: AuditFilter, types: tuple[str, ...], limit: int) -> list[Event]:
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


class SqlAuditQueries(AuditQueries):
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

    def deeds(self, asked: AuditFilter, types: tuple[str, ...], limit: int) -> list[Event]:
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
