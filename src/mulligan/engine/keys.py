"""`app.keys`: who may ask over HTTP. A key is shown once, when it is made; what is kept is a hash of it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from mulligan.engine.enqueue import checked_text
from mulligan.engine.said import ended_at, moment_of
from mulligan.errors import Moment, NotFound, Refused
from mulligan.event import EventType, NewEvent
from mulligan.job import SECOND, Micros, to_datetime
from mulligan.store.base import Store, Unit
from mulligan.store.keys import KeyRow

PREFIX = "mk_"
EVERYTHING = "*"
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID, _SECRET = 12, 40
_TEXT = re.compile(rf"{PREFIX}[{_ALPHABET}]{{{_ID + _SECRET}}}")
_STALE: Micros = 60 * SECOND  # how exactly it is known when a key was last used


class Role(StrEnum):
    """What a key may do; each may what the one before may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def may(self, role: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(role)


@dataclass(frozen=True, slots=True)
class Key:
    """A key without what makes it one."""

    id: str
    name: str
    scope: str  # one owner, or "*"
    role: Role
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None  # to the minute
    revoked_at: datetime | None
    state: str  # valid, expired, revoked

    @property
    def owner(self) -> str | None:
        """Whose jobs it is for; None: everybody's."""
        return None if self.scope == EVERYTHING else self.scope


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key at the one moment when it can be seen."""

    key: Key
    text: str

    def __repr__(self) -> str:
        return f"NewKey({self.key.id})"  # the text stays out of logs


KeyList = list[Key]  # the class below has a method called list


class Keys:
    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._open = store
        self._actor = actor

    # -- read -------------------------------------------------------------------------------------
    def list(self) -> KeyList:
        """All that were made, oldest first; also those that are revoked or expired, for as long as they are kept."""
        with self._open().read() as unit:
            now = unit.now()
            return [_shown(row, now) for row in unit.api_keys()]

    def get(self, key: str) -> Key:
        with self._open().read() as unit:
            row = unit.api_key(key)
            if row is None:
                raise NotFound(_no_such(key))
            return _shown(row, unit.now())

    def known(self, text: str) -> Key | None:
        """Whose key this text is; None: nobody's, or of one that is revoked or expired."""
        if not is_key(text):
            return None
        with self._open().read() as unit:
            now = unit.now()
            row = unit.api_key(_id_of(text))
        if row is None or not hmac.compare_digest(row.hash, _hash(text)) or _state(row, now) != "valid":
            return None
        return _shown(row, now)

    def used(self, key: Key) -> None:
        """It let somebody in; to be said now and then, and remembered to the minute."""
        with self._open().begin() as unit:
            row = unit.api_key(key.id)
            if row is not None and (row.last_used_at is None or unit.now() - row.last_used_at > _STALE):
                unit.use_api_key(key.id)

    # -- change -----------------------------------------------------------------------------------
    def create(
        self, scope: str, role: str, *, name: str = "", expires: Moment | None = None, reason: str = ""
    ) -> NewKey:
        """`scope`: one owner, or "*" for everything. `role`: viewer, operator or admin. `expires`: when it ends."""
        checked_text("scope", scope, least=1)
        checked_text("name", name)
        text = PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(_ID + _SECRET))
        with self._open().begin() as unit:
            now = unit.now()
            end = ended_at("expires", expires, now)
            row = KeyRow(
                _id_of(text), _hash(text), name, scope, _role(role).value, now, self._actor, end, None, None
            )  # fmt: skip
            unit.new_api_key(row)
            said = {"name": name, "scope": scope, "role": row.role, "expires_at": end}
            self._tell(unit, EventType.KEY_CREATED, row.id, reason, {}, {"state": "valid", **said})
        return NewKey(_shown(row, now), text)

    def revoke(self, key: str, *, reason: str = "") -> Key:
        """From now on it lets nobody in. One that was revoked before stays as it is."""
        with self._open().begin() as unit:
            before = unit.api_key(key)
            if before is None:
                raise NotFound(_no_such(key))
            row, now = unit.revoke_api_key(key), unit.now()
            if row is not None:
                was = {"state": _state(before, now)}
                self._tell(unit, EventType.KEY_REVOKED, key, reason, was, {"state": "revoked"})
            return _shown(row or before, now)

    def _tell(
        self, unit: Unit, event: EventType, key: str, reason: str, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        data = {"key": key, "reason": reason, "before": before, "after": after}
        unit.write_events([NewEvent(event, actor=self._actor, data=data)])


class AsyncKeys:
    """The same, awaitable: each call on a thread."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def list(self) -> KeyList:
        return await asyncio.to_thread(self._keys.list)

    async def get(self, key: str) -> Key:
        return await asyncio.to_thread(self._keys.get, key)

    async def known(self, text: str) -> Key | None:
        return await asyncio.to_thread(self._keys.known, text)

    async def used(self, key: Key) -> None:
        await asyncio.to_thread(self._keys.used, key)

    async def create(
        self, scope: str, role: str, *, name: str = "", expires: Moment | None = None, reason: str = ""
    ) -> NewKey:
        return await asyncio.to_thread(self._keys.create, scope, role, name=name, expires=expires, reason=reason)

    async def revoke(self, key: str, *, reason: str = "") -> Key:
        return await asyncio.to_thread(self._keys.revoke, key, reason=reason)


def is_key(text: str) -> bool:
    """Could it be one?"""
    return _TEXT.fullmatch(text) is not None


def _role(role: str) -> Role:
    try:
        return Role(role)
    except ValueError:
        message = f"role must be one of {', '.join(Role)}, not {role!r:.80}"
        raise Refused(message) from None


def _id_of(text: str) -> str:
    """Its first part finds it; that part alone lets nobody in."""
    return text[: len(PREFIX) + _ID]


def _hash(text: str) -> str:
    """200 random bits cannot be guessed, so there is nothing for a slow hash to slow down."""
    return hashlib.sha256(text.encode()).hexdigest()


def _state(row: KeyRow, now: Micros) -> str:
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= now else "valid"


def _shown(row: KeyRow, now: Micros) -> Key:
    return Key(
        id=row.id,
        name=row.name,
        scope=row.scope,
        role=Role(row.role),
        created_at=to_datetime(row.created_at),
        created_by=row.created_by,
        expires_at=moment_of(row.expires_at),
        last_used_at=moment_of(row.last_used_at),
        revoked_at=moment_of(row.revoked_at),
        state=_state(row, now),
    )


def _no_such(key: str) -> str:
    return f"no key {key!r:.80}"
