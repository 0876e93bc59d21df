"""Context and authentication of API calls, and checks that hide other owners' objects."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable
from typing import Annotated, NamedTuple, TypeVar

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from mulligan.access.keys import KEY_PREFIX, Key, Role, is_key
from mulligan.app.mulligan import Mulligan
from mulligan.app.services import StoreServices
from mulligan.batches.service import Batch
from mulligan.config import Settings, WebSection
from mulligan.core.errors import NotFound
from mulligan.core.ids import LENGTH
from mulligan.core.job import Job
from mulligan.http.api.event_hub import EventHub
from mulligan.http.api.responses import Problem, forbidden
from mulligan.http.middleware import BucketState, RecentSet, TokenBuckets, client_network
from mulligan.http.services import DatabaseThreads, IdempotencyClaims, StoreOpener
from mulligan.manifest.specs import SYSTEM_PREFIX
from mulligan.storage import Store

INVALID_KEY = "this key is invalid, expired or revoked"
BEARER = re.compile(r"Bearer +([\x21-\x7e]+) *", re.IGNORECASE)
T = TypeVar("T")

KEY_PARAMETERS = frozenset({"access_token", "api_key", "apikey", "authorization", "key", "token"})


class Caller(NamedTuple):
    """The key that sent a request, with the API's context."""

    key: Key
    key_hash: bytes  # secret: signs this key's cursors
    context: ApiContext

    @property
    def owner(self) -> str | None:
        """The owner whose objects are visible, or None for all owners."""
        return self.key.owner

    @property
    def private(self) -> bool:
        """True if the caller may see the private part of failures."""
        return self.key.role.includes(Role.OPERATOR)

    @property
    def sees_staff_actions(self) -> bool:
        """True if the caller may see staff actions (actor names, workers).

        Only unscoped operators and admins may; an operator scoped to one owner may not.
        """
        return self.private and self.owner is None

    @property
    def actor(self) -> str:
        return f"key:{self.key.id}"

    @property
    def services(self) -> StoreServices:
        return self.context.services_for(self.actor)

    async def run(self, call: Callable[[], T]) -> T:
        """Run a short database call on a thread."""
        return await self.context.run(call, self.key.id)

    async def run_slow(self, call: Callable[[], T]) -> T:
        """Run a call that reads much on a thread of its own."""
        return await self.context.run_slow(call, self.key.id)


class KeyRequirement:
    """A FastAPI dependency: the role and scope that a route requires of the caller's key."""

    def __init__(self, role: Role, *, all_owners: bool = False, bucket: str = "") -> None:
        self.role = role
        self.all_owners = all_owners
        self._bucket = bucket  # calls of these routes have a separate rate limit

    async def __call__(self, request: Request) -> Caller:
        caller = await _authenticate(request, self._bucket)
        if not caller.key.role.includes(self.role):
            raise forbidden(f"this needs a key of role {self.role}; yours is {caller.key.role}")
        if self.all_owners and caller.owner is not None:
            raise forbidden("this is shared by all owners and needs a key of scope *")
        return caller


async def _authenticate(request: Request, bucket: str) -> Caller:
    context: ApiContext = request.app.state.context
    text = _key_text(request)
    key_hash = hashlib.sha256(text.encode()).digest()
    context.rates.check_guesses(request, key_hash)
    key = await context.check(lambda: context.app.keys.authenticate(text))
    if key is None:
        context.rates.record_wrong_key(request, key_hash)
        raise _unauthenticated(INVALID_KEY)
    context.rates.record_call(request, key_hash, f"{key.id} {bucket}")
    context.record_key_use(key)
    return Caller(key, key_hash, context)


def _key_text(request: Request) -> str:
    for name, value in request.query_params.multi_items():
        if name.lower() in KEY_PARAMETERS or value.startswith(KEY_PREFIX):
            raise _unauthenticated(
                "send the key in the Authorization header. In a URL it ends up in logs: "
                "revoke this key."
            )
    headers = request.headers.getlist("authorization")
    match = BEARER.fullmatch(headers[0]) if len(headers) == 1 else None
    if match is None:
        raise _unauthenticated(
            'send one header "Authorization: Bearer KEY". Create a key with: mulligan keys create'
        )
    # Not the format of a key, so it is neither looked up nor counted as a guess.
    if not is_key(match[1]):
        raise _unauthenticated(INVALID_KEY)
    return match[1]


def _unauthenticated(detail: str) -> Problem:
    return Problem(
        401, "UNAUTHENTICATED", detail, headers={"www-authenticate": 'Bearer realm="mulligan"'}
    )


KEY_SECURITY = [
    Security(
        HTTPBearer(
            auto_error=False,
            scheme_name="key",
            description="Create a key with: mulligan keys create",
        )
    )
]
Viewer = Annotated[Caller, Depends(KeyRequirement(Role.VIEWER))]
StreamViewer = Annotated[Caller, Depends(KeyRequirement(Role.VIEWER, bucket="streams"))]
Operator = Annotated[Caller, Depends(KeyRequirement(Role.OPERATOR))]
Admin = Annotated[Caller, Depends(KeyRequirement(Role.ADMIN))]
ViewerOfAll = Annotated[Caller, Depends(KeyRequirement(Role.VIEWER, all_owners=True))]
OperatorOfAll = Annotated[Caller, Depends(KeyRequirement(Role.OPERATOR, all_owners=True))]
AdminOfAll = Annotated[Caller, Depends(KeyRequirement(Role.ADMIN, all_owners=True))]


# --- Objects of the caller ---
# Another owner's object answers exactly like an unknown one.

_ID = re.compile(rf"[0-9a-z]{{{LENGTH}}}")


def owned_job(caller: Caller, job_id: str) -> Job:
    """Return a job that the caller may see. Internal jobs need a key of scope *."""
    job = caller.services.jobs.get(check_id("job", job_id), owner=caller.owner)
    if caller.owner is not None and job.kind.startswith(SYSTEM_PREFIX):
        raise NotFound(_not_found("job", job_id))
    return job


def owned_batch(caller: Caller, batch_id: str) -> Batch:
    """Return a batch that the caller may see."""
    return caller.services.batches.get(check_id("batch", batch_id), owner=caller.owner)


def check_id(noun: str, text: str) -> str:
    """Return `text` if it has the format of an id, without a lookup; else raise NotFound."""
    if _ID.fullmatch(text) is None:
        raise NotFound(_not_found(noun, text))
    return text


def _not_found(noun: str, text: str) -> str:
    return f"no {noun} {text!r:.80}"


# --- Context ---

KEY_USE_INTERVAL = 60.0  # seconds between two records of the same key's use
SLOW_QUERY_TIMEOUT = 60.0  # seconds


class ManifestApp(Mulligan):
    """An app without handlers: what it knows comes from the manifests stored in its database."""

    def __init__(self, opener: StoreOpener) -> None:
        self._opener = opener
        super().__init__(settings=opener.settings)

    @property
    def settings(self) -> Settings:
        return self._opener.settings

    @settings.setter
    def settings(self, _: Settings) -> None:
        """Ignore it: the opener follows what the apps declare."""

    @property
    def store(self) -> Store:
        return self._opener()


# --- Rate limits of API keys ---

GUESS_BURST = 100  # wrong keys from one network at once
GUESS_RATE = 1.0  # and per second


class KeyRateLimits:
    """Limits calls per key and wrong keys per client network. Each process counts for itself."""

    def __init__(self, settings: WebSection) -> None:
        self._calls = TokenBuckets(settings.rate, settings.burst)
        self._guesses = TokenBuckets(GUESS_RATE, GUESS_BURST)
        self._valid_keys = RecentSet()

    def check_guesses(self, request: Request, key_hash: bytes) -> None:
        """Refuse clients whose network sent too many wrong keys.

        Keys that were valid before pass: a neighbour who guesses must not lock them out.
        """
        if key_hash in self._valid_keys:
            return
        bucket = self._guesses.peek(client_network(request))
        if not bucket.allowed:
            raise _too_many("too many wrong keys from your network", bucket)

    def record_wrong_key(self, request: Request, key_hash: bytes) -> None:
        self._valid_keys.discard(key_hash)
        self._guesses.take(client_network(request))

    def record_call(self, request: Request, key_hash: bytes, name: str) -> None:
        """Count a call of a valid key against the bucket `name`. Raise 429 if it is empty."""
        self._valid_keys.add(key_hash)
        bucket = self._calls.take(name)
        if not self._calls.rate:
            return
        request.state.rate_headers = self._headers(bucket)
        if not bucket.allowed:
            limit = f"{self._calls.rate:g} requests per second"
            raise _too_many(f"this key may send {limit} (web.rate, web.burst)", bucket)

    def _headers(self, bucket: BucketState) -> list[tuple[bytes, bytes]]:
        """Return the fields of draft-ietf-httpapi-ratelimit-headers."""
        burst = self._calls.burst
        rate = self._calls.rate
        window = math.ceil(burst / rate)
        reset = math.ceil((burst - bucket.left) / rate)
        policy = f'"key";q={burst};w={window}'
        state = f'"key";r={bucket.left};t={reset}'
        return [(b"ratelimit-policy", policy.encode()), (b"ratelimit", state.encode())]


def _too_many(detail: str, bucket: BucketState) -> Problem:
    headers = {"retry-after": str(max(1, math.ceil(bucket.wait)))}
    return Problem(429, "RATE_LIMITED", detail, retryable=True, headers=headers)


class ApiContext:
    """State that all routes of one API share."""

    def __init__(self, app: Mulligan) -> None:
        self.app = app
        self.hub = EventHub(self.store, app.settings.web)
        self.claims = IdempotencyClaims(self.store)
        self._threads = DatabaseThreads("mulligan-api")
        # Keys and health are checked even if all other threads wait for a locked table.
        self._check_threads = DatabaseThreads("mulligan-api-checks", 2)
        self._slow_thread = DatabaseThreads("mulligan-api-long", 1, 1)
        self.rates = KeyRateLimits(app.settings.web)
        self._key_used_at: dict[str, float] = {}  # key id → monotonic time
        self.show_database_errors = False

    def store(self) -> Store:
        return self.app.store

    @property
    def settings(self) -> Settings:
        return self.app.settings

    async def run(self, call: Callable[[], T], key: str) -> T:
        """Run a short database call of a key on a thread."""
        return await self._threads.run(call, holder=key)

    async def run_slow(self, call: Callable[[], T], key: str) -> T:
        """Run a call that reads much. Such calls run one at a time and do not delay short ones."""
        return await self._slow_thread.run(call, SLOW_QUERY_TIMEOUT, key)

    async def check(self, call: Callable[[], T]) -> T:
        """Run a query about keys or the server's health."""
        return await self._check_threads.run(call)

    def record_key_use(self, key: Key) -> None:
        """Record that a key was used, at most once a minute, without delaying the request."""
        now = time.monotonic()
        if now - self._key_used_at.get(key.id, -KEY_USE_INTERVAL) >= KEY_USE_INTERVAL:
            self._key_used_at[key.id] = now
            self._check_threads.run_detached(lambda: self.app.keys.record_use(key))

    def close(self) -> None:
        self.hub.close()
        self._threads.close()
        self._check_threads.close()
        self._slow_thread.close()

    def services_for(self, actor: str) -> StoreServices:
        """Return the services of the app, acting in the name of `actor`."""
        return StoreServices(self.store, self.settings, actor, self.app.registry)
