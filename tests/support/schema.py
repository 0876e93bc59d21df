"""Answers held against the OpenAPI document: no status, no field and no type that it does not know."""

from __future__ import annotations

import copy
import re

from jsonschema import Draft202012Validator

PREFIX = "/api/v1"


class Document:
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
        """`/jobs/count` is not `/jobs/{job_id}`."""
        exact = self.document["paths"].get(path, {}).get(method.lower())
        if exact is not None:
            return exact
        fits = (
            verbs
            for pattern, verbs in self._paths
            if method.lower() in verbs and pattern.fullmatch(path)
        )
        return next((verbs[method.lower()] for verbs in fits), None)

    def check(self, answer):
        """Whatever it answers to a call that the document knows is as the document says."""
        path = answer.request.url.path
        operation = (
            self.operation(answer.request.method, path.removeprefix(PREFIX))
            if PREFIX in path
            else None
        )
        if operation is None:
            return
        what = (answer.request.method, path, answer.status_code, answer.text[:2000])
        said = operation["responses"].get(str(answer.status_code))
        if said is None:
            assert answer.status_code == 500, what  # which tests provoke, and nothing else may
            return
        content = self._resolved(said).get("content", {})
        kind = answer.headers.get("content-type", "").partition(";")[0]
        assert kind in content or not answer.content, what
        if kind.endswith("json"):
            found = self._validator(content[kind]["schema"]).iter_errors(answer.json())
            faults = [f"{'.'.join(map(str, one.path))}: {one.message}" for one in found]
            assert not faults, (*what, faults)

    def _validator(self, schema):
        if id(schema) not in self._known:
            whole = {**schema, "components": self.document["components"]}
            self._known[id(schema)] = Draft202012Validator(
                whole, format_checker=Draft202012Validator.FORMAT_CHECKER
            )
        return self._known[id(schema)]

    def _resolved(self, said):
        if "$ref" not in said:
            return said
        return self.document["components"]["responses"][said["$ref"].rpartition("/")[2]]


def _closed(schema):
    """Clients must live with fields they do not know; our own tests must know them all."""
    if isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for one in schema.values():
            _closed(one)
    elif isinstance(schema, list):
        for one in schema:
            _closed(one)
    return schema
