"""What follows a failure, as the pages tell it: rules with what they judged, and what would follow another one."""

from __future__ import annotations

import pytest

from mulligan import Exponential, Policy, Rule
from mulligan.manifest.declared import speak
from mulligan.retries.service import rule_hits
from support.visiting import visiting

pytestmark = pytest.mark.any_store  # on PostgreSQL in `make slow`


@pytest.fixture
def shop(app):
    """Fails in two ways; one rule of its own, one in shadow, and a policy in shadow."""
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
    with app.store.begin() as unit:
        speak(unit, app.manifest())
    return app


@pytest.fixture
def guest(shop):
    with visiting(shop, role="viewer") as guest:
        yield guest


def test_rules_are_counted_by_what_they_judged(shop, guest):
    for how in ("gone", "gone", "net", "key"):
        shop.enqueue("fetch", {"how": how})
    shop.run_inline()
    counts = {
        (row.rule, row.verb, row.would_rule, row.would_verb): row.n
        for row in rule_hits(shop.store).rows
    }
    assert counts == {
        ("gone", "die", None, "die"): 2,
        ("py.connection", "retry", None, "die"): 1,
        ("py.programming-error", "die", "try-it", "die"): 1,
    }
    assert rule_hits(shop.store, kind="another").rows == ()
    page = guest.page("/policies", kind="fetch")
    assert "they have judged 4 failures in 7 days" in page
    assert "0 tried again, 2 given up" in page
    assert "MISSING (transient)" in page
    assert "the policy in shadow" in page
    rule = guest.page("/policies/rules/gone")
    assert "2 failures judged in 7 days" in rule
    assert rule.count("/jobs/") == 2
    assert guest.client.get("/policies/rules/nobody").status_code == 404


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (
            {"text": "it is gone", "kind": "fetch"},
            ("GONE", "not retried", "class permanent by rule gone"),
        ),
        (
            {"exception_type": "ConnectionResetError", "kind": "fetch"},
            ("10 s", "20 s", "2 of 2 retries used"),
        ),
        ({"text": "it is gone"}, ("UNKNOWN_ERROR",)),  # a rule of an app is its own
        ({"http_status": "429", "text": "retry after 90 seconds"}, ("RATE_LIMITED", "90 s")),
        ({"exit_code": "137"}, ("signal",)),
        ({}, ("say something of the error",)),
        ({"http_status": "many"}, ("http status: 'many' is no whole number",)),
        ({"text": "x", "kind": "nobody"}, ("no kind",)),
    ],
)
def test_an_error_that_is_pasted_gets_its_verdict_and_its_next_tries(guest, form, words):
    if form.get("kind") == "nobody":
        assert guest.client.post("/policies/what-if", data={"csrf": "0", **form}).status_code == 403
        return
    page = guest.do("/policies/what-if", **form)
    for one in words:
        assert one in page


def test_what_is_asked_is_shown_again_as_text_and_stored_nowhere(shop, guest):
    page = guest.client.post("/policies/what-if", data={"csrf": "wrong", "text": "x"})
    assert page.status_code == 403
    page = guest.do("/policies/what-if", text="<script>alert(1)</script> it is gone", kind="fetch")
    assert "GONE" in page
    assert shop.jobs.list() == []
