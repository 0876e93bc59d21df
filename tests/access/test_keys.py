"""API keys: creation, recognition, expiry, revocation; only a hash is stored."""

from __future__ import annotations

import asyncio

import pytest

from mulligan.access.keys import Role
from mulligan.access.queries import AccessQueries
from mulligan.core.durations import SECOND
from mulligan.core.errors import NotFound, Refused
from mulligan.worker.queries import RetentionQueries
from support.app_tools import advance
from support.store import sql


def test_a_key_is_recognised_by_its_whole_text(app):
    created = app.keys.create("acme", "operator", name="their backend")
    assert created.text.startswith("mk_")
    assert len(created.text) >= 35
    found = app.keys.authenticate(created.text)
    assert (found.id, found.scope, found.owner, found.role) == (
        created.key.id,
        "acme",
        "acme",
        Role.OPERATOR,
    )
    for wrong in (
        created.text[:-1],
        created.text + "0",
        created.key.id,
        created.text.upper(),
        f"{created.text}\x00",
        "",
        "mk_ä",
    ):
        assert app.keys.authenticate(wrong) is None
    altered = created.text[:-1] + ("0" if created.text[-1] != "0" else "1")
    assert app.keys.authenticate(altered) is None


@pytest.mark.security("S04")
def test_the_text_of_a_key_is_not_stored(app):
    created = app.keys.create("*", "admin")
    dump = repr(
        [*sql(app.store, "SELECT * FROM {p}api_key"), *sql(app.store, "SELECT * FROM {p}event")]
    )
    assert created.key.id in dump
    assert created.text not in dump
    assert created.text[15:] not in dump
    assert created.text not in repr(created)
    assert created.key.owner is None


@pytest.mark.security("S05")
def test_a_revoked_key_is_not_accepted_and_stays_revoked(app):
    created = app.keys.create("acme", "viewer")
    assert app.keys.revoke(created.key.id).state == "revoked"
    assert app.keys.authenticate(created.text) is None
    assert app.keys.revoke(created.key.id, reason="again").state == "revoked"
    assert [event.type for event in app.events.list()] == ["key.revoked", "key.created"]
    with pytest.raises(NotFound):
        app.keys.revoke("mk_unknown")


def test_an_expired_key_is_not_accepted(app):
    created = app.keys.create("acme", "viewer", expires=60)
    assert app.keys.authenticate(created.text) is not None
    advance(app, 61)
    assert app.keys.authenticate(created.text) is None
    assert [key.state for key in app.keys.list()] == ["expired"]


def test_the_last_use_of_a_key_is_recorded_to_the_minute(app):
    created = app.keys.create("acme", "viewer")
    assert app.keys.get(created.key.id).last_used_at is None
    app.keys.record_use(created.key)
    first = app.keys.get(created.key.id).last_used_at
    app.keys.record_use(created.key)
    assert app.keys.get(created.key.id).last_used_at == first
    advance(app, 61)
    asyncio.run(app.aio.keys.record_use(created.key))
    assert app.keys.get(created.key.id).last_used_at > first


@pytest.mark.any_store
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"scope": ""}, "scope"),
        ({"scope": "a\x00"}, "scope"),
        ({"role": "root"}, "unknown role 'root'. Use viewer, operator, admin."),
        ({"expires": -1}, "expires"),
        ({"name": "\ud800"}, "name"),
    ],
    ids=str,
)
def test_an_invalid_key_request_is_refused(app, options, match):
    with pytest.raises(Refused, match=match):
        app.keys.create(**{"scope": "acme", "role": "viewer", **options})
    assert app.keys.list() == []


def test_roles_include_those_before_them():
    assert [Role.OPERATOR.includes(role) for role in Role] == [True, True, False]


@pytest.mark.any_store
def test_keys_have_an_async_api(app):
    async def use_keys():
        created = await app.aio.keys.create("acme", "viewer")
        assert (await app.aio.keys.authenticate(created.text)).id == created.key.id
        assert (await app.aio.keys.revoke(created.key.id)).state == "revoked"
        assert [key.id for key in await app.aio.keys.list()] == [
            (await app.aio.keys.get(created.key.id)).id
        ]

    asyncio.run(use_keys())


def test_expired_keys_and_idempotency_records_are_deleted(app):
    expired = app.keys.create("acme", "viewer", expires=1)
    valid = app.keys.create("acme", "viewer")
    advance(app, 10)
    with app.store.begin() as tx:
        assert AccessQueries(tx).claim_idempotency_key(valid.key.id, "one", "hash", "claim", 0)
        RetentionQueries(tx).delete_old_api_keys(tx.now())
        assert RetentionQueries(tx).prune_stored_responses(tx.now() + SECOND, 10) == 1
        assert AccessQueries(tx).get_stored_response(valid.key.id, "one") is None
    assert [key.id for key in app.keys.list()] == [valid.key.id]
    assert expired.key.id != valid.key.id


def test_an_idempotency_key_is_claimed_once_and_taken_over_after_a_timeout(app):
    with app.store.begin() as tx:
        queries = AccessQueries(tx)
        later = tx.now() + SECOND

        def claim(name, before=0, key="k", request="hash"):
            return queries.claim_idempotency_key(key, "one", request, name, before)

        assert claim("first")
        assert not claim("second")
        assert not claim("second", later, request="another")
        assert claim("second", later)
        queries.store_response("first", 201, "of a request that lost its claim")
        assert queries.get_stored_response("k", "one") == ("hash", None, "")
        queries.store_response("second", 201, "{}")
        assert not claim("third", later)
        queries.release_idempotency_keys(["second"])
        assert queries.get_stored_response("k", "one") == ("hash", 201, "{}")
        assert claim("fourth", key="another key")


def test_a_renewed_claim_is_not_taken_over(app):
    with app.store.begin() as tx:
        start = tx.now()
        assert AccessQueries(tx).claim_idempotency_key("k", "one", "hash", "first", 0)
    advance(app, 10)
    with app.store.begin() as tx:
        AccessQueries(tx).renew_idempotency_keys(["first"])
        late = start + 5 * SECOND
        assert not AccessQueries(tx).claim_idempotency_key("k", "one", "hash", "second", late)
