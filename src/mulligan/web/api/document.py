"""The OpenAPI document: what FastAPI sees in the routes, and what it cannot see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

from fastapi import FastAPI

from mulligan.web.api.auth import Needs

PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "retryable"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "one sentence for people"},
        "code": {"type": "string", "description": "stable, for programs"},
        "retryable": {"type": "boolean", "description": "is it worth to send the same again, later?"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"where": {"type": "string"}, "what": {"type": "string"}},
            },
        },
    },
}
ONCE = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "asked again under the same name within a day, it gets the same answer and is not done again",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}
NOT_ONCE = ("/keys",)
PROBLEMS = {"$ref": "#/components/responses/Problem"}


def describe(api: FastAPI) -> None:
    """Every refusal is a problem, and every POST may name itself."""
    plain = api.openapi

    def document() -> dict[str, Any]:
        if api.openapi_schema is None:
            _complete(
                plain(), {(route.path_format, verb): route for route in api.state.calls for verb in route.methods}
            )
        return api.openapi_schema or {}

    api.openapi = document  # type: ignore[method-assign]


def _complete(found: dict[str, Any], calls: Mapping[tuple[str, str], Any]) -> None:
    components = found.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = PROBLEM
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    components["responses"] = {"Problem": {"description": "it was refused, or could not be done", "content": content}}
    for path, verbs in found["paths"].items():
        for verb, operation in verbs.items():
            operation["responses"].pop("422", None)
            operation.update(_said_of(needs_of(calls[path, verb.upper()].endpoint)))
            operation["responses"] |= {str(status): PROBLEMS for status in refusals(path, verb, operation)}
            if _once(path, verb):
                operation.setdefault("parameters", []).append(ONCE)


def needs_of(endpoint: Any) -> Needs | None:
    """What a route asks of a key; None: it needs none."""
    for hint in get_type_hints(endpoint, include_extras=True).values():
        for one in getattr(hint, "__metadata__", ()):
            if isinstance(needs := getattr(one, "dependency", None), Needs):
                return needs
    return None


def _said_of(needs: Needs | None) -> dict[str, Any]:
    return {} if needs is None else {"x-key": {"role": needs.role.value, "scope": "*" if needs.everything else "any"}}


def refusals(path: str, verb: str, operation: Mapping[str, Any]) -> list[int]:
    """How a call may be refused follows from what it takes."""
    if "security" not in operation:
        return [503] if path != "/livez" else []
    found = [401, 403, 422, 429, 503]
    if "{" in path or "batch_id" in str(operation.get("requestBody", "")):
        found.append(404)
    if "requestBody" in operation:
        found += [400, 413, 415]
    if verb != "get":
        found.append(409)
    return sorted(found)


def _once(path: str, verb: str) -> bool:
    return verb in {"post", "patch"} and path not in NOT_ONCE
