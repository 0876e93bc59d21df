"""The OpenAPI document: what FastAPI sees in the routes, and what it cannot see."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

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
REFUSALS = ("400", "401", "403", "404", "409", "413", "415", "422", "429", "503")


def describe(api: FastAPI) -> None:
    """Every refusal is a problem, and every POST may name itself."""
    plain = api.openapi

    def document() -> dict[str, Any]:
        if api.openapi_schema is None:
            _complete(plain())
        return api.openapi_schema or {}

    api.openapi = document  # type: ignore[method-assign]


def _complete(found: dict[str, Any]) -> None:
    components = found.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = PROBLEM
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    components["responses"] = {"Problem": {"description": "it was refused, or could not be done", "content": content}}
    for path, verbs in found["paths"].items():
        for verb, operation in verbs.items():
            operation["responses"] |= {status: {"$ref": "#/components/responses/Problem"} for status in REFUSALS}
            if verb == "post" and path not in NOT_ONCE:
                operation.setdefault("parameters", []).append(ONCE)
