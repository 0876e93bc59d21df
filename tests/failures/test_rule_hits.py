"""Hits of rules, counted by the database."""

from __future__ import annotations

import pytest

from mulligan import Fail, Rule
from mulligan.retries.service import count_rule_hits, list_attempts_by_rule


@pytest.fixture
def shop(app):
    app.rules.add(Rule("odd", message=r"\bvery odd indeed\b", code="ODD", cls="permanent"))

    @app.job(
        name="fail",
        rules=[Rule("maybe", type="KeyError", code="GONE", cls="transient", shadow=True)],
    )
    def fail(how: str):
        if how == "declared":
            return Fail("NO", "no", final=True)
        raise {"odd": RuntimeError("very odd indeed"), "key": KeyError("x")}[how]

    return app


def test_hits_are_counted_per_rule_and_for_shadow_rules(shop):
    for how in ("odd", "odd", "key", "declared"):
        shop.enqueue("fail", {"how": how})
    shop.run_inline()
    found = count_rule_hits(shop.store)
    assert not found.partial
    assert {
        (row.rule, row.code, row.verb, row.would_rule, row.would_code): row.n for row in found.rows
    } == {
        ("odd", "ODD", "die", None, None): 2,
        ("handler.declared", "NO", "die", None, None): 1,
        ("py.programming-error", "PROGRAMMING_ERROR", "die", "maybe", "GONE"): 1,
    }
    assert [row.code for row in list_attempts_by_rule(shop.store, "odd")] == ["ODD", "ODD"]
    assert [row.code for row in list_attempts_by_rule(shop.store, "maybe")] == ["PROGRAMMING_ERROR"]
    assert count_rule_hits(shop.store, kind="other").rows == ()
    assert list_attempts_by_rule(shop.store, "odd", kind="other") == []


def test_older_hits_are_not_counted(shop):
    shop.enqueue("fail", {"how": "odd"})
    shop.run_inline()
    shop.store.shift_clock(8 * 86_400 * 1_000_000)
    assert count_rule_hits(shop.store).rows == ()
    assert len(count_rule_hits(shop.store, since=9 * 86_400).rows) == 1
