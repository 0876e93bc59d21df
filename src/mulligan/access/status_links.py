"""`app.status`: links to a status page of one job or batch, which open without a key.

A link is signed, so that it cannot be guessed or changed, and opens nothing else. The page shows
only the public part.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from mulligan.access.queries import AccessQueries
from mulligan.batches.service import Batch
from mulligan.config import Settings
from mulligan.core.durations import Micros, resolve_end
from mulligan.core.errors import DurationOrTime, NotFound
from mulligan.core.job import Job
from mulligan.storage.base import Store

PATH = "/status/"
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
        return f"{base}{PATH}{body}.{self._sign(body)}"

    def verify(self, text: str) -> StatusGrant:
        """Return what a link gives access to. Raises `NotFound` if it is invalid or expired."""
        body, _, signature = text.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(body).encode()):
            raise NotFound(INVALID_LINK)
        target, id_, permission, end = body.split("-")
        with self._open().read() as tx:
            if end and int(end) <= tx.now():
                raise NotFound(INVALID_LINK)
        return StatusGrant("job" if target == "j" else "batch", id_, retry=permission == "r")

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
