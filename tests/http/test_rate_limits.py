"""Rate limits of keys and of wrong keys."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from mulligan.config import Settings, read_settings
from mulligan.http.api import auth
from mulligan.http.app import create_app
from mulligan.http.dashboard.sign_in import SIGN_IN_BURST
from mulligan.http.middleware import TokenBuckets


@pytest.fixture
def settings(sqlite_url: str, tmp_path) -> Settings:
    return read_settings(
        {"database_url": sqlite_url, "web": {"rate": 0.001, "burst": 3}},
        environ={},
        file=tmp_path / "none.toml",
    )


@pytest.fixture
def store_url(sqlite_url):
    """Use SQLite only: these tests do not depend on the store."""
    return sqlite_url


def test_a_token_bucket_empties_refills_and_never_exceeds_its_burst():
    buckets = TokenBuckets(rate=2, burst=3)
    assert [buckets.take("a", 0.0).left for _ in range(3)] == [2, 1, 0]
    assert buckets.take("a", 0.0) == (False, 0, 0.5)
    assert buckets.take("b", 0.0).allowed
    assert buckets.take("a", 0.5).allowed
    assert not buckets.peek("a", 0.9).allowed
    assert buckets.take("a", 1000.0).left == 2


def test_the_least_recently_used_bucket_is_dropped_first():
    buckets = TokenBuckets(rate=1, burst=1, max_clients=2)
    for name in ("a", "b", "a", "c"):
        buckets.take(name, 0.0)
    assert len(buckets) == 2
    assert not buckets.peek("c", 0.0).allowed


def test_a_rate_of_zero_means_no_limit():
    buckets = TokenBuckets(rate=0, burst=1)
    assert all(buckets.take("a", 0.0).allowed for _ in range(10))
    assert len(buckets) == 0


def test_a_key_above_its_rate_gets_429_with_retry_after(client, key):
    eager = key()
    calm = key()
    first = client.get("/api/v1/jobs", headers=eager)
    assert first.headers["ratelimit-policy"] == '"key";q=3;w=3000'
    assert first.headers["ratelimit"] == '"key";r=2;t=1000'
    answers = [client.post("/api/v1/jobs", json={"kind": "works"}, headers=eager) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 201, 429]
    problem = answers[-1].json()
    assert (problem["code"], problem["retryable"]) == ("RATE_LIMITED", True)
    assert 0 < int(answers[-1].headers["retry-after"]) <= 1000
    assert answers[-1].headers["ratelimit"].startswith('"key";r=0;')
    assert client.get("/api/v1/jobs", headers=calm).status_code == 200


def test_health_and_streams_have_separate_limits(client, key):
    headers = key()
    while client.get("/api/v1/jobs", headers=headers).status_code == 200:
        pass
    assert client.get("/livez").status_code == 200
    assert client.head("/api/v1/events", headers=headers).status_code == 200


@pytest.mark.security("S07")
def test_wrong_keys_are_limited_and_known_keys_are_not(app, client, key, monkeypatch):
    monkeypatch.setattr(client.app.state.context.rates, "_guesses", TokenBuckets(0.001, 3))
    known = key()
    later = key()
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
def test_a_revoked_key_counts_as_a_wrong_key(app, client, monkeypatch):
    monkeypatch.setattr(client.app.state.context.rates, "_guesses", TokenBuckets(0.001, 1))
    created = app.keys.create("*", "viewer")
    headers = {"Authorization": f"Bearer {created.text}"}
    assert client.get("/api/v1/jobs", headers=headers).status_code == 200
    app.keys.revoke(created.key.id)
    assert [client.get("/api/v1/jobs", headers=headers).status_code for _ in range(2)] == [401, 429]


@pytest.mark.security("S07")
def test_an_ipv6_network_counts_as_one_client(monkeypatch):
    from types import SimpleNamespace

    from mulligan.http.middleware import client_network

    def network_of(host):
        return client_network(SimpleNamespace(client=SimpleNamespace(host=host)))

    assert network_of("2001:db8::1") == network_of("2001:db8::2:3")
    assert network_of("192.0.2.1") != network_of("192.0.2.2")
    assert network_of("testclient") == "testclient"
    assert auth.GUESS_BURST > 10


@pytest.mark.security("S07")
def test_wrong_keys_at_the_sign_in_are_limited_per_client(app, settings):
    key = app.keys.create("*", "viewer").text

    site = create_app(settings)
    with TestClient(site, base_url="http://localhost"):

        def sign_in_statuses(host, *keys):
            client = TestClient(
                site, base_url="http://localhost", client=(host, 5), follow_redirects=False
            )
            return [client.post("/sign-in", data={"key": one}).status_code for one in keys]

        assert sign_in_statuses("192.0.2.1", *["wrong"] * SIGN_IN_BURST, key) == [
            *[401] * SIGN_IN_BURST,
            429,
        ]
        assert sign_in_statuses("192.0.2.2", "wrong", key) == [401, 303]
