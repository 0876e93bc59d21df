"""Answers of the API: jobs, events and other values as JSON, errors as RFC 9457 problems."""

from __future__ import annotations

import json
import logging
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from mulligan.batches.rules import BatchCounts
from mulligan.core import errors
from mulligan.core.durations import Micros, to_datetime
from mulligan.core.event import SYSTEM_ACTORS, Event, owner_visible_data
from mulligan.core.format import encode_text
from mulligan.core.job import AttemptRow, Job
from mulligan.core.statistics import Share
from mulligan.failures.group_reader import FailureGroup
from mulligan.failures.redact import mask_secrets, scrub
from mulligan.http.services import DatabaseUnavailable, describe_outage
from mulligan.operations.request import OperationPreview
from mulligan.operations.service import Operation
from mulligan.releases.rules import Suspect
from mulligan.releases.service import CauseComparison, ReleaseCounts

JsonObject = dict[str, Any]


class ApiResponse(JSONResponse):
    """A JSON response. Characters without an encoding are replaced: no value can break it."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return encode_text(text)


class JsonAnswer(NamedTuple):
    """Status and JSON body of a response."""

    status: int
    body: Any


JSON_NAMES = {"cls": "class"}  # Python name → JSON name
# Properties that are part of the JSON form, in addition to the fields of the type.
COMPUTED_FIELDS: Mapping[type, tuple[str, ...]] = {
    BatchCounts: ("total", "ended"),
    FailureGroup: ("message", "recovered_share"),
    Operation: ("under_way", "untouched"),
    OperationPreview: ("retried", "recovered", "chance"),
    ReleaseCounts: ("failed_share",),
    CauseComparison: ("is_new",),
    Share: ("value",),
    Suspect: ("sentence",),
}
PRIVATE_ATTEMPT_FIELDS = frozenset({"private", "judged", "worker", "settled_by", "release"})


def job_to_json(job: Job, *, private: bool) -> JsonObject:
    """Convert a job. Without `private`, secrets in payload and result are masked."""
    document: JsonObject = to_json(job)
    if not private:
        document["payload"] = mask_secrets(job.payload)
        document["result"] = mask_secrets(job.result)
        document["unique_key"] = _mask_unique_key(job.unique_key)
    return document


def _mask_unique_key(key: str | None) -> str | None:
    """Mask secrets in a key that was made from the payload. It is JSON then."""
    if key is None or not key.startswith("["):
        return key
    try:
        return json.dumps(mask_secrets(json.loads(key)), separators=(",", ":"))
    except ValueError:  # a caller chose this key
        return key


def attempt_to_json(attempt: AttemptRow, *, private: bool) -> JsonObject:
    """Convert an attempt. Without `private`, the private part and the worker are left out."""
    document = attempt._asdict()
    if not private:
        for name in PRIVATE_ATTEMPT_FIELDS:
            del document[name]
    for name in ("started_at", "ended_at", "next_run_at"):
        document[name] = iso_time(document[name])
    for name in {"evidence", "private", "judged"} & set(document):
        document[name] = json.loads(document[name] or "{}")
    return {JSON_NAMES.get(name, name): value for name, value in document.items()}


def event_to_json(event: Event, *, private: bool) -> JsonObject:
    """Convert an event. Without `private`, owners see neither actor names nor internal data."""
    document = {**event._asdict(), "seq": event.seq, "at": iso_time(event.at)}
    if private:
        document["data"] = dict(event.data)
    else:
        document["data"] = owner_visible_data(event.data)
        document["actor"] = _public_actor(event.actor)
    return document


def _public_actor(actor: str) -> str:
    """Return the kind of an actor without its name: `cli`, `key`, `python`. Workers: nothing."""
    kind = actor.partition(":")[0]
    if actor in SYSTEM_ACTORS or kind in {"cli", "key", "python"}:
        return kind
    return ""


def iso_time(at: Micros | None) -> str | None:
    """Format a time of the database as ISO 8601."""
    return None if at is None else to_datetime(at).isoformat()


SCALARS = frozenset({str, int, float, bool, type(None)})


def to_json(value: Any) -> Any:
    """Convert a value to JSON types. Fields that begin with an underscore are left out."""
    # Check the common types first: the other checks take longer than the conversion itself.
    if type(value) in SCALARS:
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    names = json_fields(cast("Hashable", type(value)))
    if names:
        return {JSON_NAMES.get(name, name): to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(item) for item in value]
    return value


@cache
def json_fields(kind: Any) -> tuple[str, ...]:
    """Return the attributes of a dataclass or named tuple that are part of its JSON form."""
    computed = COMPUTED_FIELDS.get(kind, ())
    if not is_dataclass(kind):
        return (*getattr(kind, "_fields", ()), *computed)
    names = [field.name for field in fields(kind)]
    public = [name for name in names if not name.startswith("_")]
    return (*public, *computed)


# --- Errors: each exception has one HTTP status ---

log = logging.getLogger("mulligan.http")

STATUS: dict[type[Exception], int] = {
    errors.NotFound: 404,
    errors.IllegalMove: 409,
    errors.UniqueMismatch: 409,
    errors.UniqueTaken: 409,
    errors.UniqueRace: 409,
    errors.RetryRefused: 409,
    errors.RetryLimited: 429,
    errors.DependencyOpen: 409,
    errors.DeadlineFirst: 409,
    errors.QueueRefused: 403,
    errors.KeyMismatch: 422,
    errors.Refused: 422,
    errors.ConfigError: 422,
    errors.StatementRefused: 422,
    errors.StoreUnavailable: 503,
    errors.SchemaError: 503,
    errors.WaitTimeout: 504,
    errors.MulliganError: 500,
}
RETRY_AFTER = {409: "1", 429: "5", 503: "2", 504: "2"}  # seconds
CODES = {401: "UNAUTHENTICATED", 403: "FORBIDDEN", 404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}
MAX_DETAIL = 2000  # characters


class Problem(Exception):
    """An error response. Raise it for errors that exist only in HTTP."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        retryable: bool = False,
        headers: Mapping[str, str] | None = None,
        errors: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retryable = retryable
        self.headers = dict(headers or {})
        self.errors = errors

    def response(self) -> Response:
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": scrub(self.detail, MAX_DETAIL),
            "code": self.code,
            "retryable": self.retryable,
        }
        if self.errors:
            body["errors"] = self.errors
        headers = dict(self.headers)
        if self.retryable and self.status in RETRY_AFTER:
            headers.setdefault("retry-after", RETRY_AFTER[self.status])
        media = "application/problem+json"
        return ApiResponse(body, self.status, headers, media_type=media)


def to_problem(error: errors.MulliganError) -> Problem:
    """Convert an error of the engine by the table STATUS."""
    status = next(STATUS[kind] for kind in type(error).mro() if kind in STATUS)
    retryable = error.retryable or status in {429, 503}
    return Problem(status, error.code, str(error), retryable=retryable)


def forbidden(detail: str) -> Problem:
    return Problem(403, "FORBIDDEN", detail)


def add_error_handlers(api: FastAPI) -> None:
    """Register a handler for every kind of exception, so that all errors are problems."""
    api.add_exception_handler(Problem, _problem)
    api.add_exception_handler(DatabaseUnavailable, _database_unavailable)
    api.add_exception_handler(errors.MulliganError, _engine_error)
    api.add_exception_handler(RequestValidationError, _validation_error)
    api.add_exception_handler(HTTPException, _http_error)
    api.add_exception_handler(Exception, _unexpected)


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # noqa: S101 - as registered
    return error.response()


async def _engine_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, errors.MulliganError)  # noqa: S101 - as registered
    return to_problem(error).response()


async def _database_unavailable(request: Request, error: Exception) -> Response:
    show_detail = request.app.state.context.show_database_errors
    detail = describe_outage(error, show_detail=show_detail)
    return Problem(503, "STORE_UNAVAILABLE", detail, retryable=True).response()


async def _validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as registered
    return invalid_request(error.errors()).response()


def invalid_request(errors: Any) -> Problem:
    """Build a problem from validation errors: where and what, without the invalid values."""
    items = [
        {"where": ".".join(map(str, error["loc"])), "what": str(error["msg"])} for error in errors
    ]
    detail = "; ".join(f"{item['where']}: {item['what']}" for item in items)
    return Problem(422, "INVALID", detail, errors=items)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as registered
    code = CODES.get(error.status_code, HTTPStatus(error.status_code).name)
    headers = error.headers
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers = {"allow": _allowed_methods(request)}
    return Problem(error.status_code, code, str(error.detail), headers=headers).response()


def _allowed_methods(request: Request) -> str:
    """Return the methods of all routes of this path. FastAPI would name those of one route only."""
    methods: set[str] = set()
    for route in request.app.state.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            methods |= set(route.methods)
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods))


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    return Problem(500, "INTERNAL", "internal error. The server log has the details.").response()
