"""Check HTTP responses against the OpenAPI document."""

from __future__ import annotations

import copy
import re

from jsonschema import Draft202012Validator

PREFIX = "/api/v1"


class Document:
    """OpenAPI document that allows no undeclared status, field or type."""

    def __init__(self, document):
        self.document = _closed(copy.deepcopy(document))
        self._known = {}
        self._paths = [
            (
                re.compile(
                    re.sub(r"\{(\w+)\}", lambda found: ".+" if found[1] == "key" else "[^/]+", path)
                ),
                verbs,
            )
            for path, verbs in self.document["paths"].items()
        ]

    def operation(self, method, path):
        """Return the operation of a request. An exact path wins over a pattern."""
        exact = self.document["paths"].get(path, {}).get(method.lower())
        if exact is not None:
            return exact
        fits = (
            verbs
            for pattern, verbs in self._paths
            if method.lower() in verbs and pattern.fullmatch(path)
        )
        return next((verbs[method.lower()] for verbs in fits), None)

    def check(self, response):
        """Assert that the response to a documented request is as documented."""
        path = response.request.url.path
        operation = (
            self.operation(response.request.method, path.removeprefix(PREFIX))
            if PREFIX in path
            else None
        )
        if operation is None:
            return
        request = (response.request.method, path, response.status_code, response.text[:2000])
        declared = operation["responses"].get(str(response.status_code))
        if declared is None:
            assert response.status_code == 500, request  # only tests may provoke it
            return
        content = self._resolve(declared).get("content", {})
        kind = response.headers.get("content-type", "").partition(";")[0]
        assert kind in content or not response.content, request
        if kind.endswith("json"):
            found = self._validator(content[kind]["schema"]).iter_errors(response.json())
            faults = [f"{'.'.join(map(str, one.path))}: {one.message}" for one in found]
            assert not faults, (*request, faults)

    def _validator(self, schema):
        if id(schema) not in self._known:
            whole = {**schema, "components": self.document["components"]}
            self._known[id(schema)] = Draft202012Validator(
                whole, format_checker=Draft202012Validator.FORMAT_CHECKER
            )
        return self._known[id(schema)]

    def _resolve(self, response):
        if "$ref" not in response:
            return response
        return self.document["components"]["responses"][response["$ref"].rpartition("/")[2]]


def _closed(schema):
    """Forbid undeclared fields: clients must tolerate them, our tests must not."""
    if isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for one in schema.values():
            _closed(one)
    elif isinstance(schema, list):
        for one in schema:
            _closed(one)
    return schema
