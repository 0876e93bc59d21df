"""Errors as RFC 9457 problems: one table says which status each of ours has."""

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
from mulligan.http.services import Away, away_words

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
AGAIN = {409: "1", 429: "5", 503: "2", 504: "2"}  # seconds to wait, where it helps to ask again
CODES = {401: "UNAUTHENTICATED", 403: "FORBIDDEN", 404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}
LONGEST = 2000


class Problem(Exception):
    """Something that HTTP alone knows to go wrong."""

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
        self.status, self.code, self.detail, self.retryable = status, code, detail, retryable
        self.headers, self.errors = dict(headers or {}), errors

    def response(self) -> Response:
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": scrub(self.detail, LONGEST),
            "code": self.code,
            "retryable": self.retryable,
        }
        if self.errors:
            body["errors"] = self.errors
        again = (
            {"retry-after": AGAIN[self.status]} if self.retryable and self.status in AGAIN else {}
        )
        media = "application/problem+json"
        return JSONResponse(body, self.status, {**again, **self.headers}, media_type=media)


def problem_of(error: errors.MulliganError) -> Problem:
    status = next(STATUS[kind] for kind in type(error).mro() if kind in STATUS)
    retryable = error.retryable or status in {429, 503}
    return Problem(status, error.code, str(error), retryable=retryable)


def forbidden(detail: str) -> Problem:
    return Problem(403, "FORBIDDEN", detail)


def add_problems(api: FastAPI) -> None:
    """Every way out that is not an answer."""
    api.add_exception_handler(Problem, _problem)
    api.add_exception_handler(Away, _away)
    api.add_exception_handler(errors.MulliganError, _ours)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(HTTPException, _http)
    api.add_exception_handler(Exception, _unexpected)


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # noqa: S101 - as registered
    return error.response()


async def _ours(_: Request, error: Exception) -> Response:
    assert isinstance(error, errors.MulliganError)  # noqa: S101 - as registered
    return problem_of(error).response()


async def _away(request: Request, error: Exception) -> Response:
    words = away_words(error, candid=request.app.state.room.candid)
    return Problem(503, "STORE_UNAVAILABLE", words, retryable=True).response()


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as registered
    return invalid(error.errors()).response()


def invalid(found: Any) -> Problem:
    """Each with where it is; what was given is not repeated."""
    each = [{"where": ".".join(map(str, one["loc"])), "what": str(one["msg"])} for one in found]
    detail = "; ".join(f"{one['where']}: {one['what']}" for one in each)
    return Problem(422, "INVALID", detail, errors=each)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as registered
    code = CODES.get(error.status_code, HTTPStatus(error.status_code).name)
    headers = (
        {"allow": _allowed(request)}
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED
        else error.headers
    )
    return Problem(error.status_code, code, str(error.detail), headers=headers).response()


def _allowed(request: Request) -> str:
    """Of all routes of this path; the framework would name those of one of them."""
    found: set[str] = set()
    for route in request.app.state.calls:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= set(route.methods)
    return ", ".join(sorted(found | ({"HEAD"} if "GET" in found else set())))


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    return Problem(500, "INTERNAL", "something went wrong here; it is in the log").response()
