"""Who is signed in to the dashboard: with a key, or by a link that works once."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from mulligan.engine.keys import EVERYTHING, Keys, Role
from mulligan.errors import Refused
from mulligan.job import SECOND, Micros
from mulligan.store.base import Store, Unit
from mulligan.store.sessions import SessionRow

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
    unit: Unit,
    scope: str,
    role: Role,
    *,
    key_id: str | None = None,
    is_link: bool = False,
    lasts: Micros = SESSION_FOR,
) -> str:
    text, now = secrets.token_urlsafe(BYTES), unit.now()
    unit.new_session(SessionRow(hash_of(text), is_link, key_id, scope, role.value, now, now + lasts))
    return text


def _still(unit: Unit, row: SessionRow) -> bool:
    """Does the key they came with still let anybody in?"""
    if row.key_id is None:
        return True
    key = unit.api_key(row.key_id)
    return key is not None and key.revoked_at is None and (key.expires_at is None or key.expires_at > unit.now())


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
