"""Statements about API keys, stored responses, and sessions of the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mulligan.core.durations import Micros
from mulligan.storage.base import Queries


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


class SessionRow(NamedTuple):
    """Session, or a sign-in link that can be used once. Only the hash of its secret is stored."""

    hash: str
    is_link: bool
    key_id: str | None  # API key that was used to sign in; None: a link
    scope: str
    role: str
    created_at: Micros
    expires_at: Micros


class AccessQueries(Queries):
    """Statements about keys, responses and sessions, in a transaction."""

    def insert_api_key(self, row: ApiKeyRow) -> None:
        """Insert a key."""
        self.tx.rows("insert_api_key", **row._asdict())

    def get_api_key(self, key_id: str) -> ApiKeyRow | None:
        """Read one key."""
        return self.first_row(ApiKeyRow, "get_api_key", id=key_id)

    def list_api_keys(self) -> list[ApiKeyRow]:
        """List all keys, oldest first."""
        return self.list_rows(ApiKeyRow, "list_api_keys")

    def revoke_api_key(self, key_id: str) -> ApiKeyRow | None:
        """Revoke a key and return it. None: it does not exist or was revoked before."""
        return self.first_row(ApiKeyRow, "revoke_api_key", id=key_id)

    def record_api_key_use(self, key_id: str) -> None:
        """Record that a key was used now."""
        self.tx.rows("record_api_key_use", id=key_id)

    def lock_idempotency_key(self, key_id: str, name: str) -> bool:
        """Lock an idempotency key until the transaction ends. False: another one has locked it."""
        return bool(self.tx.rows("lock_idempotency_key", name=f"{key_id} {name}")[0][0])

    def insert_response(self, key_id: str, name: str, request: str, status: int, body: str) -> bool:
        """Store the response of an idempotency key. False: it has one or is claimed."""
        values = {"key_id": key_id, "name": name, "request": request}
        return bool(self.tx.rows("insert_response", **values, status=status, body=body))

    def claim_idempotency_key(
        self, key_id: str, name: str, request: str, claim: str, before: Micros
    ) -> bool:
        """Claim an idempotency key for a request. False: another request has claimed it.

        A claim without a response that was not renewed since `before` is taken over.
        """
        values = {"key_id": key_id, "name": name, "request": request, "claim": claim}
        return bool(self.tx.rows("claim_idempotency_key", **values, before=before))

    def renew_idempotency_keys(self, claims: Sequence[str]) -> None:
        """Record that the requests of these claims still run."""
        self.tx.rows("renew_idempotency_keys", claims=self.tx.array_param(claims))

    def get_stored_response(self, key_id: str, name: str) -> StoredResponseRow | None:
        """Read the stored response of an idempotency key."""
        return self.first_row(StoredResponseRow, "get_stored_response", key_id=key_id, name=name)

    def store_response(self, claim: str, status: int, body: str) -> None:
        """Store the response of a claimed idempotency key, unless the claim was taken over."""
        self.tx.rows("store_response", claim=claim, status=status, body=body)

    def release_idempotency_keys(self, claims: Sequence[str]) -> None:
        """Delete claims whose requests failed, so that they can be sent again."""
        self.tx.rows("release_idempotency_keys", claims=self.tx.array_param(claims))

    def insert_session(self, row: SessionRow) -> None:
        """Insert a session or a link."""
        self.tx.rows("insert_session", **row._asdict())

    def get_session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - name of the column
        """Read a session or link. None: it does not exist or has expired."""
        return _first_session(self.tx.rows("get_session", hash=hash, is_link=is_link))

    def delete_session(self, hash: str, *, is_link: bool = False) -> SessionRow | None:  # noqa: A002 - name of the column
        """Delete a session or link and return it. None: it does not exist."""
        return _first_session(self.tx.rows("delete_session", hash=hash, is_link=is_link))

    def get_status_secret(self) -> str:
        """Return the secret that signs links to status pages, or ""."""
        found = self.tx.rows("get_status_secret")
        return str(found[0][0]) if found else ""

    def store_status_secret(self, value: str) -> str:
        """Store a secret unless there is one. Return the stored one."""
        self.tx.rows("store_status_secret", value=value)
        return self.get_status_secret()


def _first_session(rows: list[tuple[Any, ...]]) -> SessionRow | None:
    if not rows:
        return None
    session = SessionRow._make(rows[0])
    return session._replace(is_link=bool(session.is_link))
