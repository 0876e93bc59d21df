"""Hostile input in every path, query and body: an error with a code, never a 500."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from support.app_tools import run_job

TEXTS = (
    "",
    " ",
    "\x00",
    "a\x00b",
    "\r\nid: 7\r\n\r\n",
    "<script>alert(1)</script>",
    "' OR 1=1;--",
    "%",
    "_",
    "../../x",
    "{{7*7}}",
    "\u202e\u2028",
    "\U0001f600",
    "x" * 1001,
    "*",
    "mulligan.x",
    "0",
    "-1",
    "1e400",
    "state:dead",
    '"',
    "kind:",
)
VALUES = (
    *TEXTS,
    None,
    True,
    0,
    -1,
    0.5,
    10**18,
    2**63,
    -(10**30),
    1e308,
    [],
    [[]],
    {},
    {"a": {"b": ["\x00"]}},
    [None],
    ["job.died"],
    {"max_retries": -1},
    {"payload": {"text": "\x00"}},
    {"policy": {"max_retries": 1}},
    {"queue": "a b", "priority": 99, "timeout": -1},
    "2027-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
)


def paths(document):
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            if path != "/events":
                yield verb.upper(), path, operation


def fill_path(path, value):
    while "{" in path:
        begin, _, rest = path.partition("{")
        path = f"{begin}{value}{rest.partition('}')[2]}"
    return f"/api/v1{path}"


def check_response(answer, what):
    assert answer.status_code < 500, (what, answer.text)
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json", (what, answer.text)
        assert answer.json()["code"], what


@pytest.mark.security("S19")
@pytest.mark.slow
def test_hostile_texts_in_paths_and_queries_cause_no_server_error(app, client, key):
    headers = key()
    for verb, path, operation in paths(client.get("/openapi.json").json()):
        for text in TEXTS if "{" in path else ():
            address = fill_path(path, quote(text, safe=""))
            check_response(
                client.request(verb, address, headers=headers, json={"reason": "x"}), address
            )
        for one in operation.get("parameters", ()):
            for text in TEXTS if one["in"] == "query" else ():
                check_response(
                    client.request(
                        verb, fill_path(path, "x"), headers=headers, params={one["name"]: text}
                    ),
                    (path, text),
                )


@pytest.mark.security("S17", "S20")
@pytest.mark.slow
def test_hostile_values_in_bodies_cause_no_server_error(app, client, key):
    headers = key()
    dead = run_job(app, app.enqueue("fails", owner="acme"))
    names = {
        "jobs": dead.id,
        "batches": app.batch("spring").id,
        "failures": app.failures.groups()[0].fingerprint,
    }
    for verb, path, operation in paths(client.get("/openapi.json").json()):
        content = operation.get("requestBody", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema", {})
        needed = dict.fromkeys(schema.get("required", ()), "works")
        needed |= {"scope": "acme", "role": "viewer"} if path == "/keys" else {}
        address = fill_path(path, names.get(path.split("/")[1], "default"))
        for field in schema.get("properties", ()):
            for value in VALUES:
                check_response(
                    client.request(verb, address, headers=headers, json={**needed, field: value}),
                    (address, field, value),
                )
    assert app.jobs.get(dead.id).state in {"dead", "queued", "cancelled"}
