"""The policies screen: rules with their hits, shadow results, and the what-if form."""

from __future__ import annotations

import pytest

from mulligan import Exponential, Policy, Rule, Then
from mulligan.manifest.declared import publish_manifest
from mulligan.retries.service import count_rule_hits
from support.dashboard_client import sign_in_with_key

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`


@pytest.fixture
def shop(app):
    """An app with a kind that fails, a rule, a shadow rule and a shadow policy."""
    app.rules.add(
        Rule("gone", message=r"\bit is gone\b", code="GONE", cls="permanent"),
        Rule("try-it", type="KeyError", code="MISSING", cls="transient", shadow=True),
    )

    @app.job(
        name="fetch",
        policy=Policy(max_retries=2, backoff=Exponential(base=10, jitter="none")),
        shadow=Policy(max_retries=0),
    )
    def fetch(how: str):
        raise {
            "gone": RuntimeError("it is gone"),
            "net": ConnectionResetError("reset"),
            "key": KeyError("x"),
        }[how]

    app.store.prepare()
    with app.store.begin() as tx:
        publish_manifest(tx, app.manifest())
    return app


@pytest.fixture
def client(shop):
    with sign_in_with_key(shop, role="viewer") as client:
        yield client


def test_rules_show_how_many_failures_they_matched(shop, client):
    for how in ("gone", "gone", "net", "key"):
        shop.enqueue("fetch", {"how": how})
    shop.run_inline()
    counts = {
        (row.rule, row.verb, row.would_rule, row.would_verb): row.n
        for row in count_rule_hits(shop.store).rows
    }
    assert counts == {
        ("gone", "die", None, "die"): 2,
        ("py.connection", "retry", None, "die"): 1,
        ("py.programming-error", "die", "try-it", "die"): 1,
    }
    assert count_rule_hits(shop.store, kind="another").rows == ()
    page = client.page("/policies", kind="fetch")
    assert "4 failures in 7 days matched" in page
    assert "0 retried, 2 dead" in page
    assert "MISSING (transient)" in page
    assert "shadow policy" in page
    rule = client.page("/policies/rules/gone")
    assert "2 failures matched in 7 days" in rule
    assert rule.count("/jobs/") == 2
    assert client.client.get("/policies/rules/nobody").status_code == 404


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        (
            {"text": "it is gone", "kind": "fetch"},
            ("GONE", "not retried", "class permanent by rule gone"),
        ),
        (
            {"exception_type": "ConnectionResetError", "kind": "fetch"},
            ("10 s", "20 s", "2 of 2 retries used"),
        ),
        ({"text": "it is gone"}, ("UNKNOWN_ERROR",)),  # other kinds do not use the app's rules
        ({"http_status": "429", "text": "retry after 90 seconds"}, ("RATE_LIMITED", "90 s")),
        ({"exit_code": "137"}, ("signal",)),
        ({}, ("describe the error",)),
        ({"http_status": "many"}, ("http status: 'many' is not a whole number",)),
        ({"text": "x", "kind": "nobody"}, ("no kind",)),
    ],
)
def test_a_pasted_error_is_classified_with_its_retry_schedule(client, form, texts):
    if form.get("kind") == "nobody":
        assert (
            client.client.post("/policies/what-if", data={"csrf": "0", **form}).status_code == 403
        )
        return
    page = client.submit("/policies/what-if", **form)
    for one in texts:
        assert one in page


def test_classes_with_the_same_policy_share_one_card(client):
    page = client.page("/policies")
    assert "transient, timeout, rate_limited, resource</h3>" in page
    assert "quota, auth, invalid_input, permanent, cancelled</h3>" in page
    assert page.count('class="chart delays"') == 2


def test_settings_are_written_for_people_and_not_as_python_values(shop, client):
    @shop.job(
        name="render",
        policy=Policy(
            max_age=7200,
            retry_unknown=False,
            backoff=Exponential(base=30),
            then=(Then(timeout=90), Then(memory_limit=512 << 20)),
        ),
    )
    def render(clip: int): ...

    with shop.store.begin() as tx:
        publish_manifest(tx, shop.manifest())
    page = client.page("/policies", kind="render")
    for text in (
        "30 s, then × 2, at most 1 h, full jitter",
        "2 h",
        "off",
        "timeout 90 s; then memory limit 537 MB",
    ):
        assert f"<td>{text}</td>" in page
    for python in ("True", "False", "None", "()", "Exponential("):
        assert f"<td>{python}" not in page


def test_the_page_of_a_rule_writes_its_settings_for_people(shop, client):
    shop.rules.add(
        Rule(
            "busy",
            type=("BusyError", "LockError"),
            code="BUSY",
            cls="transient",
            max_retries=9,
            backoff=Exponential(base=5, jitter="none"),
        )
    )
    with shop.store.begin() as tx:
        publish_manifest(tx, shop.manifest())
    page = client.page("/policies/rules/busy")
    assert "<dd>BusyError, LockError</dd>" in page
    assert "<dd>5 s, then × 2, at most 1 h, no jitter</dd>" in page
    assert "max retries 9" in client.page("/policies")


def test_the_shell_command_repeats_the_pasted_error(client):
    page = client.submit("/policies/what-if", text="it is gone", kind="fetch")
    assert "mulligan policy test 'it is gone' --kind fetch" in page


def test_a_pasted_error_is_not_stored(shop, client):
    page = client.client.post("/policies/what-if", data={"csrf": "wrong", "text": "x"})
    assert page.status_code == 403
    page = client.submit(
        "/policies/what-if", text="<script>alert(1)</script> it is gone", kind="fetch"
    )
    assert "GONE" in page
    assert shop.jobs.list() == []
