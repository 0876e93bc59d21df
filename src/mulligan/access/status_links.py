"""`app.status`: links to a page about one job or batch, for whoever it belongs to. Who has the link needs no key.

A link is signed, so it cannot be guessed or changed, and it opens nothing else. What it shows is the public half.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mulligan.batches.service import Batch
from mulligan.config import Settings
from mulligan.core.durations import ended_at
from mulligan.core.errors import Moment, NotFound
from mulligan.core.job import Job, Micros
from mulligan.storage.base import Store

PATH = "/status/"
SEAL = 16  # bytes
STRANGE = "this link is wrong, or its time is over"


@dataclass(frozen=True, slots=True)
class Pass:
    """What a link opens."""

    what: str  # job, batch
    id: str
    retry: bool


class StatusLinks:
    def __init__(self, store: Callable[[], Store], settings: Callable[[], Settings]) -> None:
        self._open = store
        self._settings = settings

    def link(self, of: Job | Batch, *, retry: bool = True, expires: Moment | None = None) -> str:
        """A page about it: one sentence, how far it is and, with `retry`, a button once it has failed.

        `expires`: when the link ends; without it, with what it shows. A path, or a whole address if `web.public_url`
        says where people reach the page.
        """
        return f"{self._settings().web.public_url.rstrip('/')}{PATH}{self._sealed(of, expires, retry=retry)}"

    def opened(self, text: str) -> Pass:
        """What this link opens; NotFound: nothing."""
        body, _, seal = text.partition(".")
        if not hmac.compare_digest(seal.encode(), self._seal(body).encode()):
            raise NotFound(STRANGE)
        what, found, retry, end = body.split("-")
        with self._open().read() as unit:
            if end and int(end) <= unit.now():
                raise NotFound(STRANGE)
        return Pass({"j": "job", "b": "batch"}[what], found, retry == "r")

    def _sealed(self, of: Job | Batch, expires: Moment | None, *, retry: bool) -> str:
        end = self._end(expires)
        what, again = "j" if isinstance(of, Job) else "b", "r" if retry else "n"
        body = f"{what}-{of.id}-{again}-{'' if end is None else end}"
        return f"{body}.{self._seal(body)}"

    def _end(self, expires: Moment | None) -> Micros | None:
        if expires is None:
            return None
        with self._open().read() as unit:
            return ended_at("expires", expires, unit.now())

    def _seal(self, body: str) -> str:
        made = hmac.new(self._secret(), body.encode(), hashlib.sha256).digest()[:SEAL]
        return base64.urlsafe_b64encode(made).decode().rstrip("=")

    def _secret(self) -> bytes:
        """One for this database, made when it is first needed."""
        with self._open().read() as unit:
            found = unit.secret()
        if not found:
            with self._open().begin() as unit:
                found = unit.keep_secret(secrets.token_hex(32))
        return bytes.fromhex(found)


class AsyncStatusLinks:
    """The same, awaitable: each call on a thread."""

    def __init__(self, status: StatusLinks) -> None:
        self._status = status

    async def link(self, of: Job | Batch, **said: Any) -> str:
        return await asyncio.to_thread(self._status.link, of, **said)
