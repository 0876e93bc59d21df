"""Generated calls from the OpenAPI document: no 5xx, and every response matches its schema."""

from __future__ import annotations

import hypothesis
import pytest
import schemathesis
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks

from mulligan.config import read_settings
from support.web_table import TestObjects

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
CALLERS = {"all": ("*", "admin"), "owner": ("acme", "operator"), "viewer": ("acme", "viewer")}
PARTS = 3  # of the calls, tested in parallel
STREAM = "/events"  # never ends; tested in tests/http/test_streams.py
PATH_PARAMETERS = {
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
NAMES = {
    "queues": "queue",
    "kinds": "kind",
    "schedules": "schedule",
    "alerts": "alert",
    "releases": "release",
}


@pytest.fixture
def settings(store_url, tmp_path):
    """Settings without a rate limit, which would soon answer every call with 429."""
    return read_settings(
        {"database_url": store_url, "web": {"rate": 0}}, environ={}, file=tmp_path / "none.toml"
    )


@pytest.fixture
def send_calls(app, client, key):
    """Return a function that sends generated calls, half of them on existing objects."""
    objects = TestObjects(app)
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())

    def fill_names(case, draw):
        for name in case.path_parameters or {}:
            noun = PATH_PARAMETERS.get(name) or NAMES.get(case.operation.path.split("/")[1])
            if noun and draw(st.booleans()):  # an attempt is a number, not an object
                case.path_parameters[name] = objects.one(
                    noun, draw(st.sampled_from(["acme", "globex"]))
                )

    def send_calls(examples, mode, *callers, part=slice(None)):
        keys = [key(*CALLERS[name]) for name in callers]
        for found in list(schema.get_all_operations())[part]:
            operation = found.ok()
            if operation.path != STREAM and (
                mode is GenerationMode.POSITIVE or "security" in operation.definition.raw
            ):
                _check_operation(client, operation, keys, fill_names, examples, mode)

    return send_calls


def _check_operation(client, operation, keys, fill_names, examples, mode):
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(operation.as_strategy(generation_mode=mode), st.data())
    def check_case(case, data):
        fill_names(case, data.draw)
        kwargs = case.as_transport_kwargs(base_url="http://localhost/api/v1")
        kwargs.pop("cookies", None)
        case_headers = kwargs.pop("headers", {})
        content = kwargs.pop("data", None)
        body = {} if content is None else {"content": content}
        for headers in keys:
            answer = client.request(**kwargs, **body, headers={**case_headers, **headers})
            case.validate_response(answer, checks=CHECKS)

    check_case()


@pytest.mark.security("S24")
@pytest.mark.any_store
@pytest.mark.timeout(180)
@pytest.mark.parametrize("part", range(PARTS))
def test_valid_generated_calls_conform_to_the_schema(send_calls, part):
    send_calls(2, GenerationMode.POSITIVE, *CALLERS, part=slice(part, None, PARTS))


@pytest.mark.security("S24")
@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_many_valid_and_invalid_generated_calls_conform_to_the_schema(send_calls, mode):
    send_calls(25, mode, *CALLERS)
