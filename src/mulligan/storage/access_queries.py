"""Verbs for what people do: whose a key is, who did what, and how long that is remembered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.event import Event
from mulligan.storage.rows import parse_event

# Verbs of API keys, and of the answers that are kept for those who ask twice.


class ApiKeyRow(NamedTuple):
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


class StoredResponseRow(NamedTuple):
    """What was answered to a request that named itself."""

    request: str  # a hash of all it said
    status: int | None  # None: it is being worked on
    body: str


class ApiKeyQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def insert_api_key(self, row: ApiKeyRow) -> None: ...

    @abstractmethod
    def get_api_key(self, key_id: str) -> ApiKeyRow | None: ...

    @abstractmethod
    def list_api_keys(self) -> list[ApiKeyRow]:
        """All of them, oldest first."""

    @abstractmethod
    def revoke_api_key(self, key_id: str) -> ApiKeyRow | None:
        """As it is now; None: there is none, or it was revoked before."""

    @abstractmethod
    def record_api_key_use(self, key_id: str) -> None:
        """It was used just now."""

    @abstractmethod
    def delete_old_api_keys(self, before: Micros) -> None:
        """Delete keys that have let nobody in since then."""

    @abstractmethod
    def claim_idempotency_key(self, key_id: str, name: str, request: str, before: Micros) -> bool:
        """Is it ours to answer this? Also if somebody began before then and never ended."""

    @abstractmethod
    def get_stored_response(self, key_id: str, name: str) -> StoredResponseRow | None: ...

    @abstractmethod
    def store_response(self, key_id: str, name: str, status: int, body: str) -> None: ...

    @abstractmethod
    def release_idempotency_key(self, key_id: str, name: str) -> None:
        """Nothing was done: whoever asks again is not asking twice."""

    @abstractmethod
    def prune_stored_responses(self, before: Micros, limit: int) -> int: ...


class SqlApiKeyQueries(ApiKeyQueries):
    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def insert_api_key(self, row: ApiKeyRow) -> None:
        self.rows("insert_api_key", **row._asdict())

    def get_api_key(self, key_id: str) -> ApiKeyRow | None:
        found = self.rows("get_api_key", id=key_id)
        return ApiKeyRow._make(found[0]) if found else None

    def list_api_keys(self) -> list[ApiKeyRow]:
        return [ApiKeyRow._make(row) for row in self.rows("list_api_keys")]

    def revoke_api_key(self, key_id: str) -> ApiKeyRow | None:
        found = self.rows("revoke_api_key", id=key_id)
        return ApiKeyRow._make(found[0]) if found else None

    def record_api_key_use(self, key_id: str) -> None:
        self.rows("record_api_key_use", id=key_id)

    def delete_old_api_keys(self, before: Micros) -> None:
        self.rows("delete_old_api_keys", before=before)

    def claim_idempotency_key(self, key_id: str, name: str, request: str, before: Micros) -> bool:
        return bool(
            self.rows(
                "claim_idempotency_key", key_id=key_id, name=name, request=request, before=before
            )
        )

    def get_stored_response(self, key_id: str, name: str) -> StoredResponseRow | None:
        found = self.rows("get_stored_response", key_id=key_id, name=name)
        return StoredResponseRow._make(found[0]) if found else None

    def store_response(self, key_id: str, name: str, status: int, body: str) -> None:
        self.rows("store_response", key_id=key_id, name=name, status=status, body=body)

    def release_idempotency_key(self, key_id: str, name: str) -> None:
        self.rows("release_idempotency_key", key_id=key_id, name=name)

    def prune_stored_responses(self, before: Micros, limit: int) -> int:
        return len(self.rows("prune_stored_responses", before=before, limit=limit))


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
    """Part of `Transaction`."""

    @abstractmethod
    def insert_session(self, row: SessionRow) -> None: ...

    @abstractmethod
    def get_session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - the column's name
        """None: there is none, or its time is over."""

    @abstractmethod
    def delete_session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - as above
        """As it was; None: there is none any more."""

    @abstractmethod
    def delete_expired_sessions(self, before: Micros) -> None:
        """Delete those whose time was over then."""

    @abstractmethod
    def get_status_secret(self) -> str:
        """What signs links to status pages; empty: there is none yet."""

    @abstractmethod
    def store_status_secret(self, value: str) -> str:
        """Unless there is one; the one that is there then."""


class SqlSessionQueries(SessionQueries):
    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def insert_session(self, row: SessionRow) -> None:
        self.rows("insert_session", **row._asdict())

    def get_session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - as above
        return _one(self.rows("get_session", hash=hash, is_link=is_link))

    def delete_session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - as above
        return _one(self.rows("delete_session", hash=hash, is_link=is_link))

    def delete_expired_sessions(self, before: Micros) -> None:
        self.rows("delete_expired_sessions", before=before)

    def get_status_secret(self) -> str:
        found = self.rows("get_status_secret")
        return str(found[0][0]) if found else ""

    def store_status_secret(self, value: str) -> str:
        self.rows("store_status_secret", value=value)
        return self.get_status_secret()


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
    """Part of `Transaction`."""

    @abstractmethod
    def find_unique_holder(self, unique_hash: str) -> str | None:
        """The job that holds this key; None: nobody, or one whose time is over."""

    @abstractmethod
    def release_expired_key(self, unique_hash: str) -> bool:
        """Take a key from a holder whose time is over. False: it is held, or by nobody."""

    @abstractmethod
    def list_audit_events(
        self, asked: AuditFilter, types: tuple[str, ...], limit: int
    ) -> list[Event]:
        """What people did, newest first; `types`: any of these, or, of none, all."""

    @abstractmethod
    def pruned_event_id(self) -> int:
        """Up to this id only what people did is left of the events; 0: all are there."""

    @abstractmethod
    def prune_events(self, before: Micros, limit: int) -> int:
        """Delete events from before then, but not what people did; `limit`: how many are looked at."""

    @abstractmethod
    def prune_audit_events(self, before: Micros, limit: int) -> int:
        """Delete what people did before then."""

    @abstractmethod
    def delete_old_token_buckets(self, before: Micros) -> None:
        """Delete meters of owners that nobody has used since."""


class SqlAuditQueries(AuditQueries):
    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def now(self) -> Micros: ...

    @abstractmethod
    def array_param(self, ids: Sequence[str]) -> Any: ...

    def find_unique_holder(self, unique_hash: str) -> str | None:
        held = self.rows("find_unique_holder", unique_hash=unique_hash)
        return held[0][0] if held and (held[0][2] is None or held[0][2] > self.now()) else None

    def release_expired_key(self, unique_hash: str) -> bool:
        held = self.rows("find_unique_holder", unique_hash=unique_hash)
        if not held or held[0][2] is None or held[0][2] > self.now():
            return False
        self.rows("release_unique_key", id=held[0][0], unique_hash=unique_hash)
        return True

    def list_audit_events(
        self, asked: AuditFilter, types: tuple[str, ...], limit: int
    ) -> list[Event]:
        named = self.array_param(types)
        rows = self.rows(
            "list_audit_events", **asked._asdict(), types=named, all_types=not types, limit=limit
        )
        return [parse_event(row) for row in rows]

    def pruned_event_id(self) -> int:
        return next((int(row[0]) for row in self.rows("pruned_event_id")), 0)

    def prune_events(self, before: Micros, limit: int) -> int:
        """From where the last one got to: what people did stays behind, and is not looked at each time again."""
        floor = self.pruned_event_id()
        oldest = self.rows("list_oldest_events", floor=floor, limit=limit)
        young = next((place for place, (_, at) in enumerate(oldest) if at >= before), len(oldest))
        if not young:
            return 0
        top = oldest[young - 1][0]
        gone = self.rows("prune_events", floor=floor, top=top)
        self.rows("raise_pruned_event_id", floor=str(top))
        return len(gone)

    def prune_audit_events(self, before: Micros, limit: int) -> int:
        return len(self.rows("prune_audit_events", before=before, limit=limit))

    def delete_old_token_buckets(self, before: Micros) -> None:
        self.rows("delete_old_token_buckets", before=before)
