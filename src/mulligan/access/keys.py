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

from mulligan.core.durations import ended_at, moment_of
from mulligan.core.errors import Moment, NotFound, Refused
from mulligan.core.event import EventType, NewEvent
from mulligan.core.job import SECOND, Micros, to_datetime
from mulligan.jobs.enqueue import checked_text
from mulligan.storage.access_queries import KeyRow, SessionRow
from mulligan.storage.base import Store, Transaction

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
        if (
            row is None
            or not hmac.compare_digest(row.hash, _hash(text))
            or _state(row, now) != "valid"
        ):
            return None
        return _shown(row, now)

    def used(self, key: Key) -> None:
        """It let somebody in; to be said now and then, and remembered to the minute."""
        with self._open().begin() as unit:
            row = unit.api_key(key.id)
            if row is not None and (
                row.last_used_at is None or unit.now() - row.last_used_at > _STALE
            ):
                unit.use_api_key(key.id)

    # -- change -----------------------------------------------------------------------------------
    def create(
        self,
        scope: str,
        role: str,
        *,
        name: str = "",
        expires: Moment | None = None,
        reason: str = "",
    ) -> NewKey:
        """`scope`: one owner, or "*" for everything. `role`: viewer, operator or admin. `expires`: when it ends."""
        checked_text("scope", scope, least=1)
        checked_text("name", name)
        text = PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(_ID + _SECRET))
        with self._open().begin() as unit:
            now = unit.now()
            end = ended_at("expires", expires, now)
            row = KeyRow(
                _id_of(text),
                _hash(text),
                name,
                scope,
                _role(role).value,
                now,
                self._actor,
                end,
                None,
                None,
            )
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
        self,
        unit: Transaction,
        event: EventType,
        key: str,
        reason: str,
        before: dict[str, Any],
        after: dict[str, Any],
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
        self,
        scope: str,
        role: str,
        *,
        name: str = "",
        expires: Moment | None = None,
        reason: str = "",
    ) -> NewKey:
        return await asyncio.to_thread(
            self._keys.create, scope, role, name=name, expires=expires, reason=reason
        )

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


# Who is signed in to the dashboard: with a key, or by a link that works once.

LINK_FOR: Micros = 600 * SECOND
SESSION_FOR: Micros = 12 * 3600 * SECOND
BYTES = 32
WRONG = "this key is wrong, expired or revoked"
USED = "this link was used before, or is older than ten minutes; ask for a new one"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who is signed in."""

    scope: str
    role: Role
    actor: str  # as the history of what they do names them
    csrf: str  # what every form of theirs must carry
    key_id: str = ""  # the key they came with; none: by a link

    @property
    def owner(self) -> str | None:
        """Whose jobs they may see; None: everybody's."""
        return None if self.scope == EVERYTHING else self.scope

    @property
    def private(self) -> bool:
        return self.role.may(Role.OPERATOR)


class Sessions:
    def __init__(self, store: Callable[[], Store]) -> None:
        self._open = store

    def link(self, scope: str = EVERYTHING, role: Role = Role.ADMIN) -> str:
        """What signs somebody in once, within ten minutes."""
        with self._open().begin() as unit:
            return _made(unit, scope, role, is_link=True, lasts=LINK_FOR)

    def redeem(self, link: str) -> str:
        """The text of a session. Of two who use one link, one gets in."""
        with self._open().begin() as unit:
            found = unit.end_session(hash_of(link), is_link=True)
            if found is None or found.expires_at <= unit.now():
                raise Refused(USED)
            return _made(unit, found.scope, Role(found.role))

    def sign_in(self, key: str) -> str:
        found = Keys(self._open).known(key)
        if found is None:
            raise Refused(WRONG)
        with self._open().begin() as unit:
            return _made(unit, found.scope, found.role, key_id=found.id)

    def known(self, text: str) -> Visitor | None:
        """None: nobody, or somebody whose key was revoked or has expired since."""
        if not text:
            return None
        with self._open().read() as unit:
            row = unit.session(hash_of(text))
            if row is None or not _still(unit, row):
                return None
        actor = f"key:{row.key_id}" if row.key_id else "web:link"
        return Visitor(row.scope, Role(row.role), actor, csrf_of(text), row.key_id or "")

    def sign_out(self, text: str) -> None:
        with self._open().begin() as unit:
            unit.end_session(hash_of(text))


def csrf_of(session: str) -> str:
    return hmac.new(session.encode(), b"form", hashlib.sha256).hexdigest()


def _made(
    unit: Transaction,
    scope: str,
    role: Role,
    *,
    key_id: str | None = None,
    is_link: bool = False,
    lasts: Micros = SESSION_FOR,
) -> str:
    text, now = secrets.token_urlsafe(BYTES), unit.now()
    unit.new_session(
        SessionRow(hash_of(text), is_link, key_id, scope, role.value, now, now + lasts)
    )
    return text


def _still(unit: Transaction, row: SessionRow) -> bool:
    """Does the key they came with still let anybody in?"""
    if row.key_id is None:
        return True
    key = unit.api_key(row.key_id)
    return (
        key is not None
        and key.revoked_at is None
        and (key.expires_at is None or key.expires_at > unit.now())
    )


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
