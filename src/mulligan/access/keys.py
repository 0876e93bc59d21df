"""API keys (`app.keys`), dashboard sessions and links to status pages (`app.status`).

The text of a key or session is shown once, when it is created; the database holds only its hash.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mulligan.access.queries import AccessQueries, ApiKeyRow, SessionRow
from mulligan.core.durations import SECOND, Micros, optional_datetime, resolve_end, to_datetime
from mulligan.core.errors import DurationOrTime, NotFound, Refused
from mulligan.core.event import EventType, NewEvent
from mulligan.core.format import check_text
from mulligan.core.job import ALL_OWNERS, Job
from mulligan.events.queries import EventQueries
from mulligan.storage.base import Store, Transaction

if TYPE_CHECKING:
    from mulligan.batches.service import Batch
    from mulligan.config import Settings

# --- API keys ---

KEY_PREFIX = "mk_"
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_LENGTH = 12
_SECRET_LENGTH = 40
_KEY_TEXT = re.compile(rf"{KEY_PREFIX}[{_ALPHABET}]{{{_ID_LENGTH + _SECRET_LENGTH}}}")
_USE_RESOLUTION: Micros = 60 * SECOND  # `last_used_at` is written at most this often


class Role(StrEnum):
    """Permissions of a key. Each role includes the ones before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, role: Role) -> bool:
        """Return whether this role has all permissions of `role`."""
        order = list(Role)
        return order.index(self) >= order.index(role)


@dataclass(frozen=True, slots=True)
class Key:
    """An API key without its secret."""

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
        """The owner whose jobs the key may access; None: all owners."""
        return None if self.scope == ALL_OWNERS else self.scope


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just created, with its text."""

    key: Key
    text: str

    def __repr__(self) -> str:
        return f"NewKey({self.key.id})"  # without the text, which must not be logged


KeyList = list[Key]  # the class below has a method called list


class Keys:
    """Creates, lists, checks and revokes API keys."""

    def __init__(self, store: Callable[[], Store], actor: str = "python") -> None:
        self._open = store
        self._actor = actor

    def list(self) -> KeyList:
        """List all keys, oldest first, including revoked and expired ones."""
        with self._open().read() as tx:
            now = tx.now()
            return [_build_key(row, now) for row in AccessQueries(tx).list_api_keys()]

    def get(self, key: str) -> Key:
        """Return one key by its id. Raises `NotFound`."""
        with self._open().read() as tx:
            row = AccessQueries(tx).get_api_key(key)
            if row is None:
                raise NotFound(_unknown_key(key))
            return _build_key(row, tx.now())

    def authenticate(self, text: str) -> Key | None:
        """Return the key with this text; None if it is unknown, revoked or expired."""
        if not is_key(text):
            return None
        with self._open().read() as tx:
            now = tx.now()
            row = AccessQueries(tx).get_api_key(_key_id(text))
        if row is None or not hmac.compare_digest(row.hash, hash_token(text)):
            return None
        if _key_state(row, now) != "valid":
            return None
        return _build_key(row, now)

    def record_use(self, key: Key) -> None:
        """Record that a key was used now, at most once a minute."""
        with self._open().begin() as tx:
            row = AccessQueries(tx).get_api_key(key.id)
            if row is None:
                return
            if row.last_used_at is None or tx.now() - row.last_used_at > _USE_RESOLUTION:
                AccessQueries(tx).record_api_key_use(key.id)

    def create(
        self,
        scope: str,
        role: str,
        *,
        name: str = "",
        expires: DurationOrTime | None = None,
        reason: str = "",
    ) -> NewKey:
        """Create a key. Only this call returns its text.

        `scope`: one owner, or "*" for all. `role`: viewer, operator or admin.
        """
        check_text("scope", scope, min_length=1)
        check_text("name", name)
        length = _ID_LENGTH + _SECRET_LENGTH
        text = KEY_PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(length))
        with self._open().begin() as tx:
            now = tx.now()
            row = ApiKeyRow(
                id=_key_id(text),
                hash=hash_token(text),
                name=name,
                scope=scope,
                role=_parse_role(role).value,
                created_at=now,
                created_by=self._actor,
                expires_at=resolve_end("expires", expires, now),
                last_used_at=None,
                revoked_at=None,
            )
            AccessQueries(tx).insert_api_key(row)
            after = {
                "state": "valid",
                "name": name,
                "scope": scope,
                "role": row.role,
                "expires_at": row.expires_at,
            }
            self._write_event(tx, EventType.KEY_CREATED, row.id, reason, {}, after)
        return NewKey(_build_key(row, now), text)

    def revoke(self, key: str, *, reason: str = "") -> Key:
        """Revoke a key at once. A revoked key stays as it is."""
        with self._open().begin() as tx:
            before = AccessQueries(tx).get_api_key(key)
            if before is None:
                raise NotFound(_unknown_key(key))
            revoked = AccessQueries(tx).revoke_api_key(key)
            now = tx.now()
            if revoked is None:
                return _build_key(before, now)
            old_state = {"state": _key_state(before, now)}
            new_state = {"state": "revoked"}
            self._write_event(tx, EventType.KEY_REVOKED, key, reason, old_state, new_state)
            return _build_key(revoked, now)

    def _write_event(
        self,
        tx: Transaction,
        type_: EventType,
        key: str,
        reason: str,
        before: dict[str, Any],
        after: dict[str, Any],
    ) -> None:
        data = {"key": key, "reason": reason, "before": before, "after": after}
        EventQueries(tx).write_events([NewEvent(type_, actor=self._actor, data=data)])


def is_key(text: str) -> bool:
    """Return whether a text has the form of a key."""
    return _KEY_TEXT.fullmatch(text) is not None


def _parse_role(role: str) -> Role:
    try:
        return Role(role)
    except ValueError:
        message = f"unknown role {role!r:.80}. Use {', '.join(Role)}."
        raise Refused(message) from None


def _key_id(text: str) -> str:
    """Return the first part of a key, which finds it but grants nothing."""
    return text[: len(KEY_PREFIX) + _ID_LENGTH]


def hash_token(text: str) -> str:
    """Hash a key or session. It has 200 random bits or more, so a fast hash is safe."""
    return hashlib.sha256(text.encode()).hexdigest()


def _key_state(row: ApiKeyRow, now: Micros) -> str:
    if row.revoked_at is not None:
        return "revoked"
    if row.expires_at is not None and row.expires_at <= now:
        return "expired"
    return "valid"


def _build_key(row: ApiKeyRow, now: Micros) -> Key:
    return Key(
        id=row.id,
        name=row.name,
        scope=row.scope,
        role=Role(row.role),
        created_at=to_datetime(row.created_at),
        created_by=row.created_by,
        expires_at=optional_datetime(row.expires_at),
        last_used_at=optional_datetime(row.last_used_at),
        revoked_at=optional_datetime(row.revoked_at),
        state=_key_state(row, now),
    )


def _unknown_key(key: str) -> str:
    return f'unknown key {key!r:.80}. Run "mulligan keys list" to see all keys.'


# --- Dashboard sessions ---

LINK_LIFETIME: Micros = 600 * SECOND
SESSION_LIFETIME: Micros = 12 * 3600 * SECOND
TOKEN_BYTES = 32
INVALID_KEY = "This key is unknown, expired or revoked."
INVALID_LINK = "This link was already used or is older than 10 minutes. Request a new one."


@dataclass(frozen=True, slots=True)
class Visitor:
    """A signed-in user of the dashboard."""

    scope: str
    role: Role
    actor: str  # in the events of their actions
    csrf: str  # token that every form must carry
    key_id: str = ""  # the key they signed in with; empty: by a link
    is_hosted: bool = False  # signed in to the site that the dashboard is mounted in

    @property
    def owner(self) -> str | None:
        """The owner whose jobs they may see; None: all owners."""
        return None if self.scope == ALL_OWNERS else self.scope

    @property
    def may_see_private(self) -> bool:
        """True if they may see the private part of failures."""
        return self.role.includes(Role.OPERATOR)


class Sessions:
    """Creates, checks and ends sessions of the dashboard, and links that sign in once."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._open = store

    def create_link(self, scope: str = ALL_OWNERS, role: Role = Role.ADMIN) -> str:
        """Return a text that signs in once, within ten minutes."""
        with self._open().begin() as tx:
            return _create_session(tx, scope, role, is_link=True, lifetime=LINK_LIFETIME)

    def redeem(self, link: str) -> str:
        """Return a new session for a link. Of two requests with one link, only one succeeds."""
        with self._open().begin() as tx:
            found = AccessQueries(tx).delete_session(hash_token(link), is_link=True)
            if found is None or found.expires_at <= tx.now():
                raise Refused(INVALID_LINK)
            return _create_session(tx, found.scope, Role(found.role))

    def sign_in(self, key: str) -> str:
        """Return a new session for a key."""
        found = Keys(self._open).authenticate(key)
        if found is None:
            raise Refused(INVALID_KEY)
        with self._open().begin() as tx:
            return _create_session(tx, found.scope, found.role, key_id=found.id)

    def authenticate(self, text: str) -> Visitor | None:
        """Return the user of a session; None if it or its key is not valid any more."""
        if not text:
            return None
        with self._open().read() as tx:
            row = AccessQueries(tx).get_session(hash_token(text))
            if row is None or not _is_key_valid(tx, row):
                return None
        actor = f"key:{row.key_id}" if row.key_id else "web:link"
        return Visitor(row.scope, Role(row.role), actor, csrf_token(text), row.key_id or "")

    def sign_out(self, text: str) -> None:
        """End a session."""
        with self._open().begin() as tx:
            AccessQueries(tx).delete_session(hash_token(text))


def csrf_token(session: str) -> str:
    """Return the token that the forms of a session must carry."""
    return hmac.new(session.encode(), b"form", hashlib.sha256).hexdigest()


def _create_session(
    tx: Transaction,
    scope: str,
    role: Role,
    *,
    key_id: str | None = None,
    is_link: bool = False,
    lifetime: Micros = SESSION_LIFETIME,
) -> str:
    text = secrets.token_urlsafe(TOKEN_BYTES)
    now = tx.now()
    row = SessionRow(
        hash=hash_token(text),
        is_link=is_link,
        key_id=key_id,
        scope=scope,
        role=role.value,
        created_at=now,
        expires_at=now + lifetime,
    )
    AccessQueries(tx).insert_session(row)
    return text


def _is_key_valid(tx: Transaction, row: SessionRow) -> bool:
    """Return whether the key of a session is still valid. A session by a link has none."""
    if row.key_id is None:
        return True
    key = AccessQueries(tx).get_api_key(row.key_id)
    return key is not None and _key_state(key, tx.now()) == "valid"


# --- Status links: a page of one job or batch, which opens without a key ---
#
# A link is signed, so that it cannot be guessed or changed, and opens nothing else. The page shows
# only the public part.

STATUS_PATH = "/status/"
SIGNATURE_BYTES = 16
INVALID_LINK = "This link is invalid or has expired."


@dataclass(frozen=True, slots=True)
class StatusGrant:
    """Access that a status link grants."""

    target: str  # job, batch
    id: str
    retry: bool


class StatusLinks:
    """Creates and verifies status links."""

    def __init__(self, store: Callable[[], Store], settings: Callable[[], Settings]) -> None:
        self._open = store
        self._settings = settings

    def link(
        self, of: Job | Batch, *, retry: bool = True, expires: DurationOrTime | None = None
    ) -> str:
        """Return a link to the status page of a job or batch.

        The page shows one sentence, the progress and, with `retry`, a button once it has failed.
        Without `expires` the link works as long as the job or batch exists. The link is a path, or
        a URL if `web.public_url` is set.
        """
        base = self._settings().web.public_url.rstrip("/")
        end = self._resolve_expiry(expires)
        target = "j" if isinstance(of, Job) else "b"
        permission = "r" if retry else "n"
        body = f"{target}-{of.id}-{permission}-{end}"
        return f"{base}{STATUS_PATH}{body}.{self._sign(body)}"

    def verify(self, text: str) -> StatusGrant:
        """Return what a link gives access to. Raises `NotFound` if it is invalid or expired."""
        body, _, signature = text.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(body).encode()):
            raise NotFound(INVALID_LINK)
        target, id_, permission, end = body.split("-")
        with self._open().read() as tx:
            if end and int(end) <= tx.now():
                raise NotFound(INVALID_LINK)
        kind_of_target = "job" if target == "j" else "batch"
        return StatusGrant(kind_of_target, id_, retry=permission == "r")

    def _resolve_expiry(self, expires: DurationOrTime | None) -> Micros | str:
        """Return when a link expires; empty for never."""
        if expires is None:
            return ""
        with self._open().read() as tx:
            return resolve_end("expires", expires, tx.now()) or ""

    def _sign(self, body: str) -> str:
        digest = hmac.new(self._load_secret(), body.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest[:SIGNATURE_BYTES]).decode().rstrip("=")

    def _load_secret(self) -> bytes:
        """Return the signing secret of this database, created on first use."""
        with self._open().read() as tx:
            found = AccessQueries(tx).get_status_secret()
        if not found:
            with self._open().begin() as tx:
                found = AccessQueries(tx).store_status_secret(secrets.token_hex(32))
        return bytes.fromhex(found)
