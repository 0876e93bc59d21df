"""A key lets somebody in, for one owner or for everything, until it ends; only a hash of it is kept."""

from __future__ import annotations

import asyncio

import pytest

from mulligan.access.keys import Role
from mulligan.core.errors import NotFound, Refused
from mulligan.core.job import SECOND
from support.app_tools import advance
from support.store import sql


def test_a_key_is_known_by_its_text_alone(app):
    made = app.keys.create("acme", "operator", name="their backend")
    assert made.text.startswith("mk_")
    assert len(made.text) >= 35
    found = app.keys.known(made.text)
    assert (found.id, found.scope, found.owner, found.role) == (
        made.key.id,
        "acme",
        "acme",
        Role.OPERATOR,
    )
    for wrong in (
        made.text[:-1],
        made.text + "0",
        made.key.id,
        made.text.upper(),
        f"{made.text}\x00",
        "",
        "mk_ä",
    ):
        assert app.keys.known(wrong) is None
    twisted = made.text[:-1] + ("0" if made.text[-1] != "0" else "1")
    assert app.keys.known(twisted) is None


@pytest.mark.security("S04")
def test_the_key_itself_is_nowhere(app):
    made = app.keys.create("*", "admin")
    dump = repr(
        [*sql(app.store, "SELECT * FROM {p}api_key"), *sql(app.store, "SELECT * FROM {p}event")]
    )
    assert made.key.id in dump
    assert made.text not in dump
    assert made.text[15:] not in dump
    assert made.text not in repr(made)
    assert made.key.owner is None


@pytest.mark.security("S05")
def test_a_revoked_key_lets_nobody_in_and_is_revoked_once(app):
    made = app.keys.create("acme", "viewer")
    assert app.keys.revoke(made.key.id).state == "revoked"
    assert app.keys.known(made.text) is None
    assert app.keys.revoke(made.key.id, reason="again").state == "revoked"
    assert [event.type for event in app.events.list()] == ["key.revoked", "key.created"]
    with pytest.raises(NotFound):
        app.keys.revoke("mk_nobody")


def test_a_key_ends_when_its_time_is_over(app):
    made = app.keys.create("acme", "viewer", expires=60)
    assert app.keys.known(made.text) is not None
    advance(app, 61)
    assert app.keys.known(made.text) is None
    assert [key.state for key in app.keys.list()] == ["expired"]


def test_when_a_key_was_last_used_is_known_to_the_minute(app):
    made = app.keys.create("acme", "viewer")
    assert app.keys.get(made.key.id).last_used_at is None
    app.keys.used(made.key)
    first = app.keys.get(made.key.id).last_used_at
    app.keys.used(made.key)
    assert app.keys.get(made.key.id).last_used_at == first
    advance(app, 61)
    asyncio.run(app.aio.keys.used(made.key))
    assert app.keys.get(made.key.id).last_used_at > first


@pytest.mark.any_store
@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"scope": ""}, "scope"),
        ({"scope": "a\x00"}, "scope"),
        ({"role": "root"}, "role must be one of viewer, operator, admin"),
        ({"expires": -1}, "expires"),
        ({"name": "\ud800"}, "name"),
    ],
    ids=str,
)
def test_a_key_that_makes_no_sense_is_not_made(app, said, match):
    with pytest.raises(Refused, match=match):
        app.keys.create(**{"scope": "acme", "role": "viewer", **said})
    assert app.keys.list() == []


def test_roles_include_those_before_them():
    assert [Role.OPERATOR.may(role) for role in Role] == [True, True, False]


@pytest.mark.any_store
def test_keys_can_be_awaited(app):
    async def walk():
        made = await app.aio.keys.create("acme", "viewer")
        assert (await app.aio.keys.known(made.text)).id == made.key.id
        assert (await app.aio.keys.revoke(made.key.id)).state == "revoked"
        assert [key.id for key in await app.aio.keys.list()] == [
            (await app.aio.keys.get(made.key.id)).id
        ]

    asyncio.run(walk())


def test_keys_and_answers_that_serve_nobody_leave(app):
    old = app.keys.create("acme", "viewer", expires=1)
    kept = app.keys.create("acme", "viewer")
    advance(app, 10)
    with app.store.begin() as unit:
        assert unit.take_answer(kept.key.id, "one", "hash", before=0)
        unit.forget_api_keys(unit.now())
        assert unit.prune_answers(unit.now() + SECOND, 10) == 1
        assert unit.answer(kept.key.id, "one") is None
    assert [key.id for key in app.keys.list()] == [kept.key.id]
    assert old.key.id != kept.key.id


def test_an_answer_is_taken_once_and_taken_over_when_its_first_taker_never_ended(app):
    with app.store.begin() as unit:
        assert unit.take_answer("k", "one", "hash", before=0)
        assert not unit.take_answer("k", "one", "hash", before=0)
        assert not unit.take_answer("k", "one", "another", before=unit.now() + SECOND)
        assert unit.take_answer("k", "one", "hash", before=unit.now() + SECOND)
        unit.end_answer("k", "one", 201, "{}")
        assert not unit.take_answer("k", "one", "hash", before=unit.now() + SECOND)
        unit.drop_answer("k", "one")
        assert unit.answer("k", "one") == ("hash", 201, "{}")
        assert unit.take_answer("another key", "one", "hash", before=0)
