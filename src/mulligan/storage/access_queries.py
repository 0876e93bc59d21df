"""Statements about API keys, stored responses, sessions and the audit log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.core.event import Event
from mulligan.storage.rows import parse_event

# --- API keys and stored responses ---


class ApiKeyRow(NamedTuple):
    """API key as stored. The key itself is not, only its hash."""

    id: str
    hash: str
    name: str
    scope: str  # an owner, or "*" for all owners
    role: str
    created_at: Micros
    created_by: str
    expires_at: Micros | None
    last_used_at: Micros | None
    revoked_at: Micros | None


class StoredResponseRow(NamedTuple):
    """Stored response to an HTTP request with an Idempotency-Key."""

    request: str  # hash of the request
    status: int | None  # None: the request is still running
    body: str


class ApiKeyQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def insert_api_key(self, row: ApiKeyRow) -> None:
        """Insert a key."""

    @abstractmethod
    def get_api_key(self, key_id: str) -> ApiKeyRow | None:
        """Read one key."""

    @abstractmethod
    def list_api_keys(self) -> list[ApiKeyRow]:
        """List all keys, oldest first."""

    @abstractmethod
    def revoke_api_key(self, key_id: str) -> ApiKeyRow | None:
        """Revoke a key and return it. None: it does not exist or was revoked before."""

    @abstractmethod
    def record_api_key_use(self, key_id: str) -> None:
        """Record that a key was used now."""

    @abstractmethod
    def delete_old_api_keys(self, before: Micros) -> None:
        """Delete keys that were revoked or expired before a time."""

    @abstractmethod
    def claim_idempotency_key(self, key_id: str, name: str, request: str, before: Micros) -> bool:
        """Claim an idempotency key for a request. False: another request has claimed it.

        A claim without a response that is older than `before` is taken over.
        """

    @abstractmethod
    def get_stored_response(self, key_id: str, name: str) -> StoredResponseRow | None:
        """Read the stored response of an idempotency key."""

    @abstractmethod
    def store_response(self, key_id: str, name: str, status: int, body: str) -> None:
        """Store the response of a claimed idempotency key."""

    @abstractmethod
    def release_idempotency_key(self, key_id: str, name: str) -> None:
        """Delete a claim whose request did nothing, so that it can be sent again."""

    @abstractmethod
    def prune_stored_responses(self, before: Micros, limit: int) -> int:
        """Delete at most `limit` old responses. Return how many."""


class SqlApiKeyQueries(ApiKeyQueries):
    """ApiKeyQueries in SQL."""

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


# --- Sessions of the dashboard ---


class SessionRow(NamedTuple):
    """Session, or a sign-in link that can be used once. Only the hash of its secret is stored."""

    hash: str
    is_link: bool
    key_id: str | None  # API key that was used to sign in; None: a link
    scope: str
    role: str
    created_at: Micros
    expires_at: Micros


class SessionQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def insert_session(self, row: SessionRow) -> None:
        """Insert a session or a link."""

    @abstractmethod
    def get_session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - name of the column
        """Read a session or link. None: it does not exist or has expired."""

    @abstractmethod
    def delete_session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - name of the column
        """Delete a session or link and return it. None: it does not exist."""

    @abstractmethod
    def delete_expired_sessions(self, before: Micros) -> None:
        """Delete sessions that expired before a time."""

    @abstractmethod
    def get_status_secret(self) -> str:
        """Return the secret that signs links to status pages, or ""."""

    @abstractmethod
    def store_status_secret(self, value: str) -> str:
        """Store a secret unless there is one. Return the stored one."""


class SqlSessionQueries(SessionQueries):
    """SessionQueries in SQL."""

    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    def insert_session(self, row: SessionRow) -> None:
        self.rows("insert_session", **row._asdict())

    def get_session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - name of the column
        return _first_session(self.rows("get_session", hash=hash, is_link=is_link))

    def delete_session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - name of the column
        return _first_session(self.rows("delete_session", hash=hash, is_link=is_link))

    def delete_expired_sessions(self, before: Micros) -> None:
        self.rows("delete_expired_sessions", before=before)

    def get_status_secret(self) -> str:
        found = self.rows("get_status_secret")
        return str(found[0][0]) if found else ""

    def store_status_secret(self, value: str) -> str:
        self.rows("store_status_secret", value=value)
        return self.get_status_secret()


def _first_session(rows: list[tuple[Any, ...]]) -> SessionRow | None:
    if not rows:
        return None
    session = SessionRow._make(rows[0])
    return session._replace(is_link=bool(session.is_link))


# --- Audit log, unique keys and pruning of events ---


class AuditFilter(NamedTuple):
    """Filter of audit events. None: any."""

    actor: str | None = None
    owner: str | None = None
    job_id: str | None = None
    since: Micros | None = None
    until: Micros | None = None
    before: int | None = None  # only ids below this one


class AuditQueries(ABC):
    """Part of `Transaction`."""

    @abstractmethod
    def find_unique_holder(self, unique_hash: str) -> str | None:
        """Return the job that holds a unique key. None: the key is free or its hold has expired."""

    @abstractmethod
    def release_expired_key(self, unique_hash: str) -> bool:
        """Release a unique key whose hold has expired. False: it is held or free."""

    @abstractmethod
    def list_audit_events(
        self, filters: AuditFilter, types: tuple[str, ...], limit: int
    ) -> list[Event]:
        """List actions of people, newest first. `types`: only these, or all if empty."""

    @abstractmethod
    def pruned_event_id(self) -> int:
        """Return the id up to which events are pruned, except actions of people. 0: none."""

    @abstractmethod
    def prune_events(self, before: Micros, limit: int) -> int:
        """Delete old events, except actions of people. `limit`: how many are examined."""

    @abstractmethod
    def prune_audit_events(self, before: Micros, limit: int) -> int:
        """Delete old actions of people."""

    @abstractmethod
    def delete_old_token_buckets(self, before: Micros) -> None:
        """Delete token buckets of owners that were not used since a time."""


class SqlAuditQueries(AuditQueries):
    """AuditQueries in SQL."""

    @abstractmethod
    def rows(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def now(self) -> Micros: ...

    @abstractmethod
    def array_param(self, ids: Sequence[str]) -> Any: ...

    def find_unique_holder(self, unique_hash: str) -> str | None:
        for _, holder, _, until in self._holders(unique_hash):
            if until is None or until > self.now():
                return str(holder)
        return None

    def release_expired_key(self, unique_hash: str) -> bool:
        for _, holder, _, until in self._holders(unique_hash):
            if until is not None and until <= self.now():
                self.rows("release_unique_key", id=holder, unique_hash=unique_hash)
                return True
        return False

    def _holders(self, unique_hash: str) -> list[tuple[Any, ...]]:
        """Return the row of the job that holds a unique key, if there is one."""
        return self.rows("find_unique_holders", hashes=self.array_param([unique_hash]))

    def list_audit_events(
        self, filters: AuditFilter, types: tuple[str, ...], limit: int
    ) -> list[Event]:
        rows = self.rows(
            "list_audit_events",
            **filters._asdict(),
            types=self.array_param(types),
            all_types=not types,
            limit=limit,
        )
        return [parse_event(row) for row in rows]

    def pruned_event_id(self) -> int:
        found = self.rows("pruned_event_id")
        return int(found[0][0]) if found else 0

    def prune_events(self, before: Micros, limit: int) -> int:
        # Continue where the last call ended, so that actions of people are not examined again.
        floor = self.pruned_event_id()
        oldest = self.rows("list_oldest_events", floor=floor, limit=limit)
        old_ids = [event_id for event_id, at in takewhile(lambda row: row[1] < before, oldest)]
        if not old_ids:
            return 0
        top = old_ids[-1]
        deleted = self.rows("prune_events", floor=floor, top=top)
        self.rows("raise_pruned_event_id", floor=str(top))
        return len(deleted)

    def prune_audit_events(self, before: Micros, limit: int) -> int:
        return len(self.rows("prune_audit_events", before=before, limit=limit))

    def delete_old_token_buckets(self, before: Micros) -> None:
        self.rows("delete_old_token_buckets", before=before)
