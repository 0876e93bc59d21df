"""Errors as RFC 9457 problems: one table maps each exception to its HTTP status."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from mulligan.core import errors
from mulligan.failures.redact import scrub
from mulligan.http.services import DatabaseUnavailable, describe_outage

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
    errors.KeyMismatch: 422,
    errors.Refused: 422,
    errors.ConfigError: 422,
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
        return JSONResponse(body, self.status, headers, media_type=media)


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
