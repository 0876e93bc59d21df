"""What rules have judged, counted by the store itself."""

from __future__ import annotations

import pytest

from mulligan import Fail, Rule
from mulligan.retries.service import judged_by, rule_hits


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


def test_each_rule_has_what_it_judged_and_what_it_would_have_said_in_shadow(shop):
    for how in ("odd", "odd", "key", "declared"):
        shop.enqueue("fail", {"how": how})
    shop.run_inline()
    found = rule_hits(shop.store)
    assert not found.partial
    assert {
        (row.rule, row.code, row.verb, row.would_rule, row.would_code): row.n for row in found.rows
    } == {
        ("odd", "ODD", "die", None, None): 2,
        ("handler.declared", "NO", "die", None, None): 1,
        ("py.programming-error", "PROGRAMMING_ERROR", "die", "maybe", "GONE"): 1,
    }
    assert [row.code for row in judged_by(shop.store, "odd")] == ["ODD", "ODD"]
    assert [row.code for row in judged_by(shop.store, "maybe")] == ["PROGRAMMING_ERROR"]
    assert rule_hits(shop.store, kind="other").rows == ()
    assert judged_by(shop.store, "odd", kind="other") == []


def test_what_is_longer_ago_is_not_counted(shop):
    shop.enqueue("fail", {"how": "odd"})
    shop.run_inline()
    shop.store.shift_clock(8 * 86_400 * 1_000_000)
    assert rule_hits(shop.store).rows == ()
    assert len(rule_hits(shop.store, since=9 * 86_400).rows) == 1
