"""Calls made up from the API's own description: whatever comes, no 5xx, and every answer as the description says."""

from __future__ import annotations

import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks

from mulligan.config import read_settings
from support.web_table import Things

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
CALLERS = {"all": ("*", "admin"), "owner": ("acme", "operator"), "viewer": ("acme", "viewer")}
PARTS = 3  # of the calls, to be tried side by side
STREAM = "/events"  # has no end; tests/http/test_streams.py asks it
THINGS = {
    "job_id": "job",
    "fingerprint": "group",
    "operation_id": "operation",
    "batch_id": "batch",
    "webhook_id": "webhook",
    "delivery_id": "delivery",
    "key_id": "key",
    "worker_id": "worker",
    "kind": "kind",
    "key": "dependency",
}
NAMES = {"queues": "queue", "kinds": "kind", "schedules": "schedule", "alerts": "alert"}


@pytest.fixture
def settings(store_url, tmp_path):
    """With no limit of calls, which would soon be all that is answered."""
    return read_settings(
        {"database_url": store_url, "web": {"rate": 0}}, environ={}, file=tmp_path / "none.toml"
    )


@pytest.fixture
def ask(app, client, key):
    """Sends cases in the name of a caller, on things that are there as often as on made-up ones."""
    things, document = Things(app), client.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)

    def named(case, draw):
        for name in case.path_parameters or {}:
            what = THINGS.get(name) or NAMES[case.operation.path.split("/")[1]]
            if draw(st.booleans()):
                case.path_parameters[name] = things.one(
                    what, draw(st.sampled_from(["acme", "globex"]))
                )

    def ask(examples, mode, *callers, part=slice(None)):
        keys = [key(*CALLERS[who]) for who in callers]
        for found in list(schema.get_all_operations())[part]:
            operation = found.ok()
            if operation.path != STREAM and (
                mode is GenerationMode.POSITIVE or "security" in operation.definition.raw
            ):
                _each(client, operation, keys, named, examples, mode)

    return ask


def _each(client, operation, keys, named, examples, mode):
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(operation.as_strategy(generation_mode=mode), st.data())
    def try_it(case, data):
        named(case, data.draw)
        kwargs = case.as_transport_kwargs(base_url="http://localhost/api/v1")
        kwargs.pop("cookies", None)
        given, content = kwargs.pop("headers", {}), kwargs.pop("data", None)
        body = {} if content is None else {"content": content}
        for headers in keys:
            answer = client.request(**kwargs, **body, headers={**given, **headers})
            case.validate_response(answer, checks=CHECKS)

    try_it()


@pytest.mark.security("S24")
@pytest.mark.any_store
@pytest.mark.timeout(180)
@pytest.mark.parametrize("part", range(PARTS))
def test_what_the_description_allows_is_answered_as_it_says_whoever_asks(ask, part):
    ask(2, GenerationMode.POSITIVE, *CALLERS, part=slice(part, None, PARTS))


@pytest.mark.security("S24")
@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_the_same_for_long_and_what_it_forbids(ask, mode):
    ask(25, mode, *CALLERS)
