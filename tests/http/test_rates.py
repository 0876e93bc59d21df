"""How often somebody may ask."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from mulligan.config import Settings, read_settings
from mulligan.http import middleware as limiting
from mulligan.http.app import create_app
from mulligan.http.dashboard.sign_in import TRIES
from mulligan.http.middleware import Buckets


@pytest.fixture
def settings(sqlite_url: str, tmp_path) -> Settings:
    return read_settings(
        {"database_url": sqlite_url, "web": {"rate": 0.001, "burst": 3}},
        environ={},
        file=tmp_path / "none.toml",
    )


@pytest.fixture
def store_url(sqlite_url):
    """Nothing here is about the store."""
    return sqlite_url


def test_a_bucket_empties_fills_again_and_is_never_fuller_than_full():
    buckets = Buckets(rate=2, burst=3)
    assert [buckets.take("a", 0.0).left for _ in range(3)] == [2, 1, 0]
    assert buckets.take("a", 0.0) == (False, 0, 0.5)
    assert buckets.take("b", 0.0).allowed
    assert buckets.take("a", 0.5).allowed
    assert not buckets.look("a", 0.9).allowed
    assert buckets.take("a", 1000.0).left == 2


def test_who_has_asked_least_recently_is_forgotten_first():
    buckets = Buckets(rate=1, burst=1, most=2)
    for name in ("a", "b", "a", "c"):
        buckets.take(name, 0.0)
    assert len(buckets) == 2
    assert not buckets.look("c", 0.0).allowed


def test_without_a_rate_nobody_is_counted():
    buckets = Buckets(rate=0, burst=1)
    assert all(buckets.take("a", 0.0).allowed for _ in range(10))
    assert len(buckets) == 0


def test_a_key_that_asks_too_often_is_told_when_to_come_again(client, key):
    eager, calm = key(), key()
    first = client.get("/api/v1/jobs", headers=eager)
    assert first.headers["ratelimit-policy"] == '"key";q=3;w=3000'
    assert first.headers["ratelimit"] == '"key";r=2;t=1000'
    answers = [client.post("/api/v1/jobs", json={"kind": "works"}, headers=eager) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 201, 429]
    said = answers[-1].json()
    assert (said["code"], said["retryable"]) == ("RATE_LIMITED", True)
    assert 0 < int(answers[-1].headers["retry-after"]) <= 1000
    assert answers[-1].headers["ratelimit"].startswith('"key";r=0;')
    assert client.get("/api/v1/jobs", headers=calm).status_code == 200


def test_health_and_streams_are_counted_apart(client, key):
    headers = key()
    while client.get("/api/v1/jobs", headers=headers).status_code == 200:
        pass
    assert client.get("/livez").status_code == 200
    assert client.head("/api/v1/events", headers=headers).status_code == 200


@pytest.mark.security("S07")
def test_who_tries_keys_is_stopped_and_who_has_one_is_not(app, client, key, monkeypatch):
    monkeypatch.setattr(client.app.state.room.rates, "_guesses", Buckets(0.001, 3))
    known, later = key(), key()
    assert client.get("/api/v1/jobs", headers=known).status_code == 200
    wrong = {"Authorization": "Bearer mk_" + "0" * 52}
    assert [client.get("/api/v1/jobs", headers=wrong).status_code for _ in range(4)] == [
        401,
        401,
        401,
        429,
    ]
    assert client.get("/api/v1/jobs", headers=later).status_code == 429
    assert client.get("/api/v1/jobs", headers=known).status_code == 200
    assert client.get("/api/v1/jobs").status_code == 401
    assert client.get("/api/v1/jobs", headers={"Authorization": "Bearer x"}).status_code == 401


@pytest.mark.security("S05")
def test_a_key_that_was_good_and_is_not_any_more_is_a_wrong_one(app, client, monkeypatch):
    monkeypatch.setattr(client.app.state.room.rates, "_guesses", Buckets(0.001, 1))
    made = app.keys.create("*", "viewer")
    headers = {"Authorization": f"Bearer {made.text}"}
    assert client.get("/api/v1/jobs", headers=headers).status_code == 200
    app.keys.revoke(made.key.id)
    assert [client.get("/api/v1/jobs", headers=headers).status_code for _ in range(2)] == [401, 429]


@pytest.mark.security("S07")
def test_a_network_of_ipv6_is_one_place(monkeypatch):
    from types import SimpleNamespace

    from mulligan.http.middleware import place_of

    def asked_from(host):
        return place_of(SimpleNamespace(client=SimpleNamespace(host=host)))

    assert asked_from("2001:db8::1") == asked_from("2001:db8::2:3")
    assert asked_from("192.0.2.1") != asked_from("192.0.2.2")
    assert asked_from("testclient") == "testclient"
    assert limiting.GUESSES > 10


@pytest.mark.security("S07")
def test_who_tries_keys_at_the_sign_in_is_stopped_and_a_neighbour_is_not(app, settings):
    key = app.keys.create("*", "viewer").text

    site = create_app(settings)
    with TestClient(site, base_url="http://localhost"):

        def tried(host, *keys):
            client = TestClient(
                site, base_url="http://localhost", client=(host, 5), follow_redirects=False
            )
            return [client.post("/sign-in", data={"key": one}).status_code for one in keys]

        assert tried("192.0.2.1", *["wrong"] * TRIES, key) == [*[401] * TRIES, 429]
        assert tried("192.0.2.2", "wrong", key) == [401, 303]
