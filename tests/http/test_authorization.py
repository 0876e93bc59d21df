"""Every route by role, scope and owner of its object. See tests/support/web_table.py."""

from __future__ import annotations

import pytest

from support.database_contents import contents
from support.web_table import OPEN, OWNED, ROLES, ROUTES, TestObjects, call_route

PARTS = 3  # of the routes, tested in parallel
SCOPES = ("acme", "*")
CALLERS = [(scope, role) for scope in SCOPES for role in ROLES]


@pytest.fixture
def objects(app, client):
    return TestObjects(app)


@pytest.fixture
def callers(key):
    return {(scope, role): key(scope, role) for scope, role in CALLERS}


def is_allowed(route_spec, scope, role):
    return ROLES.index(role) >= ROLES.index(route_spec.role) and route_spec.scope in ("any", scope)


@pytest.mark.security("S09")
@pytest.mark.any_store
def test_the_table_contains_every_route_with_its_requirement(client):
    document = client.get("/openapi.json").json()
    operations = {}
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            operations[f"{verb.upper()} {path}"] = operation
    assert set(operations) == set(ROUTES) | OPEN
    for route in OPEN:
        assert "x-key" not in operations[route], route
    for route, route_spec in ROUTES.items():
        required = {"role": route_spec.role, "scope": route_spec.scope}
        assert operations[route]["x-key"] == required, route


@pytest.mark.security("S09", "S14")
@pytest.mark.any_store
def test_an_insufficient_key_is_refused_and_changes_nothing(app, client, objects, callers):
    nouns = {route_spec.noun for route_spec in ROUTES.values() if route_spec.noun}
    names = {"": [""]}  # by noun: of an object, and of one that does not exist
    for noun in sorted(nouns):
        names[noun] = [objects.one(noun, "acme"), objects.unknown(noun)]
    before = contents(app.store)
    for route, route_spec in ROUTES.items():
        for (scope, role), headers in callers.items():
            if is_allowed(route_spec, scope, role):
                continue
            for name in names[route_spec.noun]:
                answer = call_route(client, route, headers, name)
                assert answer.status_code == 403, (route, scope, role, answer.text)
    assert contents(app.store) == before


@pytest.mark.security("S09")
@pytest.mark.any_store
@pytest.mark.timeout(180)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_sufficient_key_is_served_and_unknown_objects_are_404(
    app, client, objects, callers, part
):
    for route, route_spec in list(ROUTES.items())[part::PARTS]:
        for (scope, role), headers in callers.items():
            if not is_allowed(route_spec, scope, role):
                continue
            owners = ["acme"]
            if scope == "*" and route_spec.noun:
                owners.append("globex")
            for owner in owners:
                name = ""
                if route_spec.noun:
                    name = objects.one(route_spec.noun, owner, fresh=route_spec.consumes)
                answer = call_route(client, route, headers, name)
                assert answer.status_code in route_spec.statuses, (
                    route,
                    scope,
                    role,
                    owner,
                    answer.text,
                )
            if route_spec.noun:
                answer = call_route(client, route, headers, objects.unknown(route_spec.noun))
                assert answer.status_code == route_spec.unknown_status, (
                    route,
                    scope,
                    role,
                    answer.text,
                )


@pytest.mark.security("S09", "S10")
def test_another_owners_object_answers_like_an_unknown_one(app, client, objects, callers):
    foreign_names = {noun: objects.one(noun, "globex") for noun in sorted(OWNED)}
    before = contents(app.store)
    for route, route_spec in ROUTES.items():
        for role in ROLES if route_spec.noun in OWNED else ():
            foreign = foreign_names[route_spec.noun]
            unknown = objects.unknown(route_spec.noun)
            answers = [
                call_route(client, route, callers["acme", role], name)
                for name in (foreign, unknown)
            ]
            expected = 404 if is_allowed(route_spec, "acme", role) else 403
            assert [answer.status_code for answer in answers] == [expected, expected], (
                route,
                role,
                answers[0].text,
            )
            assert answers[0].text.replace(foreign, unknown) == answers[1].text
    assert contents(app.store) == before


@pytest.mark.security("S11")
def test_no_response_contains_another_owners_data(app, client, objects, callers):
    app.enqueue("works", {"text": "B-7f3"}, owner="globex", unique="B-7f3")
    own = {noun: objects.one(noun, "acme") for noun in sorted(OWNED)}
    foreign = {noun: objects.one(noun, "globex") for noun in sorted(OWNED)}
    for route, route_spec in ROUTES.items():
        if route.startswith("GET") and route_spec.scope == "any":
            name = own.get(route_spec.noun, "")
            text = call_route(client, route, callers["acme", "admin"], name).text
            assert "globex" not in text, route
            for name in foreign.values():
                assert name not in text, route
