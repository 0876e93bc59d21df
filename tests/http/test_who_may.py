"""Every route by scope, role, and whose the thing is: own, foreign, unknown. See tests/support/web_table.py."""

from __future__ import annotations

import pytest

from support.contents import contents
from support.web_table import OPEN, OWNED, ROLES, ROUTES, Things, asked

PARTS = 3  # of the routes, to be tried side by side
SCOPES = ("acme", "*")
CALLERS = [(scope, role) for scope in SCOPES for role in ROLES]


@pytest.fixture
def things(app, client):
    return Things(app)


@pytest.fixture
def callers(key):
    return {(scope, role): key(scope, role) for scope, role in CALLERS}


def may(line, scope, role):
    return ROLES.index(role) >= ROLES.index(line.role) and line.scope in ("any", scope)


@pytest.mark.security("S09")
@pytest.mark.any_store
def test_no_route_is_left_out(client):
    document = client.get("/openapi.json").json()
    known = {
        f"{verb.upper()} {path}": one
        for path, verbs in document["paths"].items()
        for verb, one in verbs.items()
    }
    assert set(known) == set(ROUTES) | OPEN
    for route, operation in known.items():
        line = ROUTES.get(route)
        assert operation.get("x-key") == (line and {"role": line.role, "scope": line.scope}), route


@pytest.mark.security("S09", "S14")
@pytest.mark.any_store
def test_who_may_not_is_refused_whatever_it_is_and_nothing_changes(app, client, things, callers):
    named = {
        what: things.one(what, "acme")
        for what in sorted({line.what for line in ROUTES.values()} - {""})
    }
    before = contents(app.store)
    for route, line in ROUTES.items():
        for (scope, role), headers in callers.items():
            if may(line, scope, role):
                continue
            for name in (named[line.what], things.none(line.what)) if line.what else ("",):
                answer = asked(client, route, headers, name)
                assert answer.status_code == 403, (route, scope, role, answer.text)
    assert contents(app.store) == before


@pytest.mark.security("S09")
@pytest.mark.any_store
@pytest.mark.timeout(180)
@pytest.mark.parametrize("part", range(PARTS))
def test_who_may_is_served_and_what_is_not_there_is_not_found(app, client, things, callers, part):
    for route, line in list(ROUTES.items())[part::PARTS]:
        for (scope, role), headers in callers.items():
            if not may(line, scope, role):
                continue
            for owner in ("acme", "globex") if scope == "*" and line.what else ("acme",):
                name = things.one(line.what, owner, fresh=line.spends) if line.what else ""
                answer = asked(client, route, headers, name)
                assert answer.status_code in line.fine, (route, scope, role, owner, answer.text)
            if line.what:
                answer = asked(client, route, headers, things.none(line.what))
                assert answer.status_code == line.none, (route, scope, role, answer.text)


@pytest.mark.security("S09", "S10")
def test_what_is_anothers_answers_like_what_is_not_there_and_nothing_changes(
    app, client, things, callers
):
    theirs = {what: things.one(what, "globex") for what in sorted(OWNED)}
    before = contents(app.store)
    for route, line in ROUTES.items():
        for role in ROLES if line.what in OWNED else ():
            foreign, none = theirs[line.what], things.none(line.what)
            answers = [
                asked(client, route, callers["acme", role], name) for name in (foreign, none)
            ]
            expected = 404 if may(line, "acme", role) else 403
            assert [answer.status_code for answer in answers] == [expected, expected], (
                route,
                role,
                answers[0].text,
            )
            assert answers[0].text.replace(foreign, none) == answers[1].text
    assert contents(app.store) == before


@pytest.mark.security("S11")
def test_nothing_of_another_owner_is_in_any_answer(app, client, things, callers):
    app.enqueue("works", {"text": "B-7f3"}, owner="globex", unique="B-7f3")
    own, theirs = (
        {what: things.one(what, owner) for what in sorted(OWNED)} for owner in ("acme", "globex")
    )
    for route, line in ROUTES.items():
        if route.startswith("GET") and line.scope == "any":
            text = asked(client, route, callers["acme", "admin"], own.get(line.what, "")).text
            assert "globex" not in text, route
            for foreign in theirs.values():
                assert foreign not in text, route
