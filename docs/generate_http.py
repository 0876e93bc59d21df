"""Generate docs/reference/http.md from the routes of the API. Used by `generate.py`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mulligan.config import read_settings
from mulligan.http.api import ROUTERS, create_api
from mulligan.http.api.responses import STATUS

Table = Callable[..., str]

PAGE = """\
{notice}

# HTTP

Under `/api/v1`, JSON. `mulligan web` and `mulligan up` serve it; [mounted in your own application](../howto/live-events.md#can-i-mount-it-in-my-own-application) it is under the prefix you choose. The
OpenAPI document is `/openapi.json`.

## How do I start?

```python
# jobs.py
from mulligan import Mulligan

app = Mulligan()


@app.job
def render(clip: int) -> str:
    return f"clip {{clip}}"
```

Create a key on the command line. It is printed once and stored as a hash.

```console
$ mulligan migrate
$ KEY=$(mulligan keys create --scope acme --role operator --name backend --expires 90d)
$ mulligan web --port 8000
$ curl -s -H "Authorization: Bearer $KEY" http://127.0.0.1:8000/api/v1/jobs --json '{{"kind": "render", "payload": {{"clip": 7}}}}'
{{"id":"…","kind":"render","queue":"default","owner":"acme","state":"queued",…}}
$ curl -s -H "Authorization: Bearer $KEY" -H "Idempotency-Key: order-7" http://127.0.0.1:8000/api/v1/jobs --json '{{"kind": "render", "payload": {{"clip": 8}}}}' -o first.json
$ curl -s -H "Authorization: Bearer $KEY" -H "Idempotency-Key: order-7" http://127.0.0.1:8000/api/v1/jobs --json '{{"kind": "render", "payload": {{"clip": 8}}}}' -o again.json
$ cmp first.json again.json && echo the same job
the same job
$ curl -s -H "Authorization: Bearer $KEY" "http://127.0.0.1:8000/api/v1/jobs?filter=kind:render&limit=1"
{{"jobs":[{{"id":"…","kind":"render",…}}],"next":"…","partial":false}}
$ curl -s -H "Authorization: Bearer $KEY" http://127.0.0.1:8000/api/v1/queues
{{"type":"about:blank","title":"Forbidden","status":403,"detail":"this is shared by all owners and needs a key of scope *","code":"FORBIDDEN","retryable":false}}
```

## What is a key?

A key has a scope and a role. Send it in `Authorization: Bearer …`; a key in a URL is refused.

| scope | access |
| --- | --- |
| one owner | jobs, batches, groups, operations, webhooks of that owner. Other owners' objects get the same answer as unknown ones. Names only queues that the app declares (`app.queue`, or the queue of a kind) or that an operator has limited or paused; others are 403 `QUEUE_REFUSED` |
| `*` | everything, including shared things: queues, workers, dependencies, metrics. Only this scope may set `owner` in a body |

| role | may |
| --- | --- |
| viewer | read: the public part of failures, payloads without secrets, actions without their actors. A filter cannot name a masked argument |
| operator | act, and read the private part |
| admin | create and revoke keys: of its own scope, or of all with `*` |

`mulligan keys list` shows when each was last used, to the minute. A revoked key stops working at once; its open [streams](../howto/live-events.md) end within a minute.
Without a key the server listens on loopback only.

## How do I repeat a request safely?

`Idempotency-Key: …` on any POST except the one that creates keys: the same request gets the same answer for 24 hours, with `Idempotent-Replayed: true`. Values are separate per API key. Another body with the same value is 422; while the
first request is in progress it is 409. A refused request had no effect and may be repeated. The answer for a new job is stored in the transaction that inserts it: one value makes one job, and after an outage the request can be repeated at once.
The value of any other request is free again as soon as that request has failed, or ten seconds after its server died.

## What do errors look like?

RFC 9457, `application/problem+json`: `type`, `title`, `status`, `detail`, `code`, `retryable`; for an invalid body also `errors`, each with `where` and `what`. A `retryable` error carries `Retry-After`.

{statuses}

## What are the rate limits?

`web.rate` requests a second and `web.burst` at once per key, counted by each server separately. Opening streams is counted separately, health is not counted. Every response shows what remains (`RateLimit`, `RateLimit-Policy`); above the limit it is 429 `RATE_LIMITED` with `Retry-After`.
Invalid keys are counted per address: 100, then one a second.

## What may a body contain?

A body has at most `limits.payload` plus 64 KiB (else 413), and is strict JSON: no NaN, no duplicate names, at most 100 levels, valid Unicode, no unknown fields. To continue a list, pass its `next` as `cursor`; it belongs to
your key and your filter.

A payload must fit the JSON schema of its kind, else 422 `PAYLOAD_REFUSED`. A new job is what the app declares: `unique`, `uses`, queue and priority apply as for a
[call in the app](python.md#enqueue-by-name).

## Which calls are there?

GET needs a key of at least the role viewer, other methods operator, unless *key* says otherwise; `*`: of scope `*`. An answer without a status is 200.

{routes}

## What do the answers look like?

As described in `/openapi.json` for every call. `name:type`; a field without a type is a text, one with `?`
is optional, `list:` is a list. Later versions may add fields. A plural such as `Jobs` is an object with one list
of that name (`jobs`), and `next` if it has pages.

{answers}
"""

TITLES = {
    "jobs": "Jobs",
    "failures": "Failures",
    "operations": "Operations",
    "batches": "Batches",
    "queues": "Queues and workers",
    "kinds": "Kinds",
    "releases": "Releases",
    "dependencies": "Dependencies",
    "policies": "Policies and insight",
    "schedules": "Schedules",
    "alerts": "Alerts",
    "webhooks": "Webhooks and deliveries",
    "keys": "Keys",
    "audit": "Audit",
    "events": "Events",
    "health": "Health and metrics",
}


MOST_REPEATED = 5  # fields of another answer that an answer repeats


def page(notice: str, table: Table) -> str:
    document = create_api(read_settings({}, environ={})).openapi()
    rows: dict[str, list[list[str]]] = {}
    for router in ROUTERS:
        rows.setdefault(TITLES[str(router.tags[0])], []).extend(
            _row(route, document)
            for route in router.routes
            if getattr(route, "include_in_schema", False)
        )
    head = ("call", "key", "description", "answer")
    parts = [part for title, calls in rows.items() for part in (f"### {title}", table(head, calls))]
    answers = table(("answer", "fields"), _answers(document))
    statuses = table(("status", "codes"), _statuses())
    return PAGE.format(notice=notice, statuses=statuses, routes="\n\n".join(parts), answers=answers)


def _row(route: Any, document: Mapping[str, Any]) -> list[str]:
    (method,) = route.methods
    path = route.path.replace(":path", "")
    description = " ".join((inspect.getdoc(route.endpoint) or "").split())
    fields = ", ".join(_fields(route))
    body = f"`{{{fields}}}`" if fields else ""
    operation = document["paths"][path][method.lower()]
    return [
        f"`{method} {path}`",
        _key(operation, "viewer" if method == "GET" else "operator"),
        " ".join(filter(None, (body, description))),
        _answer(operation),
    ]


def _answer(operation: Mapping[str, Any]) -> str:
    """Return each success status with the name of its answer; 200 alone is not named."""
    found = {
        status: one for status, one in operation["responses"].items() if status.startswith("2")
    }
    if list(found) == ["200"]:
        return _content(found["200"])
    return ", ".join(f"{status} {_content(one)}".strip() for status, one in found.items())


def _content(answer: Mapping[str, Any]) -> str:
    for kind, content in answer.get("content", {}).items():
        return _type(content["schema"]) if kind == "application/json" else f"`{kind}`"
    return ""


def _answers(document: Mapping[str, Any]) -> Iterator[list[str]]:
    described: dict[str, set[str]] = {}
    for name, schema in sorted(document["components"]["schemas"].items()):
        if "enum" in schema:
            yield [f"`{name}`", "one of " + ", ".join(f"`{word}`" for word in schema["enum"])]
        elif name != "Problem" and not _is_page(schema):
            fields = list(_object(schema))
            described[name] = set(fields)
            yield [f"`{name}`", ", ".join(_extend(fields, described))]


def _object(schema: Mapping[str, Any]) -> Iterator[str]:
    needed = set(schema.get("required", ()))
    for field, one in schema["properties"].items():
        yield _field(field if field in needed else f"{field}?", one)


def _extend(fields: list[str], described: Mapping[str, set[str]]) -> list[str]:
    """Name the largest answer that has most of these fields instead of repeating it."""
    parts = [
        name for name, has in described.items() if len(has) > MOST_REPEATED and has < set(fields)
    ]
    if not parts:
        return fields
    part = max(parts, key=lambda name: len(described[name]))
    return [f"as `{part}`", *(field for field in fields if field not in described[part])]


def _is_page(schema: Mapping[str, Any]) -> bool:
    """True for a list and its cursor, such as `Jobs`: its name says what it has."""
    properties = dict(schema["properties"])
    for name in ("next", "partial", "more", "capped"):
        properties.pop(name, None)
    [*kinds] = (one.get("type") for one in properties.values())
    return kinds == ["array"]


def _field(name: str, schema: Mapping[str, Any]) -> str:
    """Return `name:type`, in one word; a text has no type."""
    kind = _type(schema).replace("`", "").replace(" or ", "/").replace("list of ", "list:")
    return f"`{name}`" if kind == "text" else f"`{name}:{kind}`"


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if schema.get("format") == "date-time":
        return "time"
    return {
        "string": "text",
        "integer": "number",
        "number": "number",
        "boolean": "boolean",
        "null": "null",
    }.get(schema.get("type", ""), "JSON" if "type" not in schema else "object")


def _key(operation: Mapping[str, Any], usual: str) -> str:
    """Return the role that a call needs, unless it is the usual one of its method, and the scope."""
    needed = operation.get("x-key", {"role": "none", "scope": "any"})
    role = "" if needed["role"] == usual else needed["role"]
    return f"{role} `*`".strip() if needed["scope"] == "*" else role


def _fields(route: Any) -> Iterator[str]:
    content = (route.openapi_extra or {}).get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    schema = schema.get("anyOf", [schema])[0]
    for name in schema.get("properties", {}):
        yield name if name in schema.get("required", ()) else f"{name}?"


def _statuses() -> Iterator[list[str]]:
    found: dict[int, list[str]] = {400: ["NOT_JSON"], 401: ["UNAUTHENTICATED"], 403: ["FORBIDDEN"]}
    for kind, status in STATUS.items():
        found.setdefault(status, []).append(kind.code)  # type: ignore[attr-defined]
    found[409] += ["IDEMPOTENCY_IN_FLIGHT"]
    found[413], found[415] = ["TOO_LARGE"], ["NOT_JSON"]
    found[422] += [
        "INVALID",
        "CURSOR",
        "IDEMPOTENCY_MISMATCH",
        "and the code of every other refusal",
    ]
    found[429] += ["RATE_LIMITED", "TOO_MANY_STREAMS"]
    found[500] = ["INTERNAL"]
    found[503] += ["NOT_READY", "TOO_MANY_STREAMS"]
    for status in sorted(found):
        yield [
            str(status),
            ", ".join(
                f"`{code}`" if code.isupper() else code for code in dict.fromkeys(found[status])
            ),
        ]
