"""Settings that an app declares in its code: precedence, errors, and every process that obeys."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from mulligan import Mulligan, Retry, background_worker, testing
from mulligan.config import read_settings
from mulligan.core.errors import ConfigError
from mulligan.core.job import WorkerRow
from mulligan.http.app import create_app
from mulligan.manifest.declared import apply_declared_settings, publish_manifest
from mulligan.worker.queries import WorkerQueries
from support.cli_fixtures import *  # noqa: F403 - pytest finds fixtures by name here
from support.waiting import until

DECLARED = '{"worker.lease": 12, "worker.heartbeat": 3, "retention.dead": "90d", "web.burst": 77}'


@pytest.fixture
def declaring(folder: Path) -> Path:
    """A folder whose app declares settings in its code."""
    file = folder / "jobs.py"
    file.write_text(file.read_text().replace("Mulligan()", f"Mulligan(settings={DECLARED})"))
    return folder


# --- Values and precedence ---


def test_code_overrides_defaults_and_is_overridden_by_file_and_environment(tmp_path):
    file = tmp_path / "mulligan.toml"
    file.write_text("[worker]\nconcurrency = 3\nrunners = 3\n")
    declared = {"worker.concurrency": 2, "worker.runners": 2, "worker.poll": 2}
    environ = {"MULLIGAN_WORKER__RUNNERS": "4"}
    settings = read_settings(declared=declared, environ=environ, file=file)
    found = {name: value for name, value in settings.values() if name in declared}
    assert found == {"worker.concurrency": 3, "worker.runners": 4, "worker.poll": 2}
    assert settings.origin_of("worker.poll") == "code"
    assert settings.origin_of("worker.concurrency") == str(file)
    assert settings.origin_of("worker.runners") == "environment MULLIGAN_WORKER__RUNNERS"
    assert settings.origin_of("worker.sweep") == "default"


@pytest.mark.parametrize("value", [7_776_000, "90d", "2160h", timedelta(days=90)])
def test_a_duration_may_be_a_number_a_text_or_a_timedelta(value):
    app = Mulligan("sqlite:///unused.db", settings={"retention.dead": value})
    assert app.settings.retention.dead == 90 * 86_400


def test_sections_may_be_nested():
    declared = {"worker": {"lease": 12, "heartbeat": 3}, "retry.classes": {"timeout.factor": 4}}
    app = Mulligan("sqlite:///unused.db", settings=declared)
    assert app.settings.worker.lease == 12
    assert app.settings.retry.classes.timeout.factor == 4


def test_alerts_rules_and_retry_switches_can_be_declared():
    rules = [{"name": "backlog", "measure": "dead", "above": 10, "window": 600}]
    app = Mulligan(
        "sqlite:///unused.db",
        settings={"alerts.rules": rules, "retry.enabled": False, "retry.only": ["timeout"]},
    )
    assert app.settings.alerts.rules == tuple(rules)
    assert not app.settings.retry.enabled
    assert app.settings.retry.only == ("timeout",)


def test_a_database_in_the_settings_is_a_default_and_one_as_argument_is_not(monkeypatch):
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", "sqlite:///operator.db")
    declared = {"database_url": "sqlite:///code.db"}
    assert Mulligan(settings=declared).settings.database_url == "sqlite:///operator.db"
    assert Mulligan("sqlite:///argument.db").settings.database_url == "sqlite:///argument.db"


# --- Mistakes ---


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            {"worker.leese": 3},
            r"worker\.leese: no such setting \(from code\); did you mean wor.*lease",
        ),
        ({"worker": 3}, r"worker is a section, not a value \(from code\)"),
        ({"worker.lease": -1}, r"worker\.lease: .* \(got -1\), from code"),
        (
            {"retention.dead": "soon"},
            r"retention\.dead: must be seconds.*\(got 'soon'\), from code",
        ),
        ({"worker.heartbeat": 40}, r"heartbeat \(40\.0\) must be shorter than lease .*from code"),
        ({"retry.classes.invalid_input.factor": 2}, "class invalid_input is never retried"),
        (["worker.lease"], r"settings must be a dict such as"),
        ({"alerts.rules": [{"window": timedelta(1)}]}, r"settings: .*timedelta.*lists and dicts"),
    ],
)
def test_a_mistake_is_refused_where_the_app_is_created(declared: Any, message):
    with pytest.raises(ConfigError, match=message):
        Mulligan("sqlite:///unused.db", settings=declared)


def test_a_mistake_in_code_is_not_hidden_by_a_variable(monkeypatch):
    monkeypatch.setenv("MULLIGAN_WORKER__LEASE", "30")
    with pytest.raises(ConfigError, match=r"worker\.lease"):
        Mulligan("sqlite:///unused.db", settings={"worker.lease": -1})


def test_a_variable_that_contradicts_the_code_names_both(monkeypatch):
    monkeypatch.setenv("MULLIGAN_WORKER__LEASE", "10")
    declared = {"worker.lease": 60, "worker.heartbeat": 20}
    with pytest.raises(ConfigError, match=r"from environment MULLIGAN_WORKER__LEASE and code"):
        Mulligan("sqlite:///unused.db", settings=declared)


def test_a_worker_shows_a_mistake_in_one_line(start, folder):
    file = folder / "jobs.py"
    file.write_text(file.read_text().replace("()", "(settings={'worker.leese': 1})", 1))
    answer = start("worker", "jobs:app").wait_for_exit()
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert "worker.leese: no such setting (from code); did you mean worker.lease?" in answer.err


# --- Processes ---


@pytest.fixture
def shop(declaring, store_url, monkeypatch):
    """An app on the database of the processes under test."""
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", store_url)
    monkeypatch.syspath_prepend(str(declaring))
    app = Mulligan(store_url).open()
    yield app
    app.close()


def live_worker(app: Mulligan) -> WorkerRow | None:
    with app.store.read() as tx:
        rows = WorkerQueries(tx).list_workers(closed=False)
    return rows[0] if rows else None


def lease_of_worker(app: Mulligan) -> float:
    row = until(lambda: live_worker(app), 30, "a worker")
    return row.lease / 1_000_000


def publish(app: Mulligan, **declared: Any) -> None:
    """Store the manifest of an app, as its worker does."""
    manifest = Mulligan(app.settings.database_url, **declared).manifest("shop:app")
    with app.store.begin() as tx:
        publish_manifest(tx, manifest)


def api_burst(app: Mulligan, address: str) -> str:
    """Return the rate limit that the API announces: `web.burst`."""
    key = app.keys.create("*", "viewer").text
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx2.get(f"{address}api/v1/queues", headers=headers)
    return answer.headers["ratelimit-policy"]


@pytest.mark.processes
def test_a_worker_obeys_the_code(start, shop):
    worker = start("worker", "jobs:app")
    assert lease_of_worker(shop) == 12
    assert worker.stop().code == 0


@pytest.mark.processes
def test_a_variable_wins_over_the_code_of_a_workers_app(start, shop):
    start("worker", "jobs:app", MULLIGAN_WORKER__LEASE="9")
    assert lease_of_worker(shop) == 9


@pytest.mark.processes
def test_a_background_worker_obeys_the_code(shop):
    with background_worker("jobs:app", env={"MULLIGAN_LOG__LEVEL": "ERROR"}):
        assert lease_of_worker(shop) == 12


@pytest.mark.processes
def test_a_worker_of_a_test_obeys_the_code(shop):
    with testing.temporary(shop), testing.worker(shop, "jobs:app"):
        assert lease_of_worker(shop) == 12


@pytest.mark.processes
@pytest.mark.parametrize("command", [("up", "jobs:app"), ("web", "jobs:app")])
def test_the_web_server_of_an_app_obeys_the_code(start, shop, command):
    address = start(*command, "--port", "0").address()
    assert '"key";q=77;' in api_burst(shop, address)


@pytest.mark.processes
def test_a_web_server_without_an_app_obeys_the_apps_of_its_database(start, shop):
    publish(shop, settings={"web.burst": 55})
    address = start("web", "--port", "0").address()
    assert '"key";q=55;' in api_burst(shop, address)


def test_a_mounted_dashboard_obeys_its_app(store_url):
    app = Mulligan(store_url, settings={"web.burst": 44}).open()
    site = FastAPI()
    site.mount("/mulligan", create_app(app))
    headers = {"Authorization": f"Bearer {app.keys.create('*', 'viewer').text}"}
    with TestClient(site) as client:
        answer = client.get("/mulligan/api/v1/queues", headers=headers)
    assert '"key";q=44;' in answer.headers["ratelimit-policy"]
    app.close()


def test_jobs_that_run_inline_obey_the_code(store_url):
    app = Mulligan(store_url, settings={"retry.max_retries": 1, "retry.base_delay": 1})

    @app.job
    def work() -> Retry:
        return Retry()

    job = work.enqueue()
    testing.drain(app, scheduled=True, anywhere=True)
    assert (job.refresh().state, job.refresh().attempts) == ("dead", 2)
    app.close()


# --- Stored in the manifest ---


def test_secrets_and_addresses_are_not_stored_in_the_manifest():
    declared = {"mail.password": "hunter2", "mail.host": "smtp.example", "retry.max_retries": 5}
    app = Mulligan("sqlite:///unused.db", settings={**declared, "listen_url": "postgresql://h/d"})
    assert app.settings.mail.password == "hunter2"
    assert app.manifest().settings == {"mail.host": "smtp.example", "retry.max_retries": 5}


def test_a_running_web_server_follows_a_deploy(store_url, monkeypatch):
    monkeypatch.setattr("mulligan.http.services.FOLLOW_INTERVAL", 0.0)
    app = Mulligan(store_url).open()
    site = create_app(read_settings({"database_url": store_url}))
    headers = {"Authorization": f"Bearer {app.keys.create('*', 'viewer').text}"}

    def max_retries(client: TestClient) -> int:
        answer = client.get("/api/v1/policies/work", headers=headers)
        fields = {field["name"]: field["value"] for field in answer.json()["fields"]}
        return fields["max_retries"]

    def deploy(release: str, **settings: Any) -> None:
        shop = Mulligan(store_url, name="shop", release=release, settings=settings)
        shop.job(name="work")(lambda: None)
        with app.store.begin() as tx:
            publish_manifest(tx, shop.manifest())

    with TestClient(site, base_url="http://localhost") as client:
        deploy("r1")
        assert max_retries(client) == 3
        deploy("r2", **{"retry.max_retries": 5})
        assert max_retries(client) == 5
    app.close()


def test_the_newest_of_two_apps_wins_and_the_doctor_warns(call, shop):
    publish(shop, name="mill", settings={"retention.dead": "10d", "retention.events": "20d"})
    publish(shop, name="shop", settings={"retention.dead": "90d"})
    found = settings_of(call("doctor", "-o", "json"))
    assert found["retention.dead"] == (90 * 86_400, "code of shop")
    assert found["retention.events"] == (20 * 86_400, "code of mill")
    checks = json.loads(call("doctor", "-o", "json").out)["checks"]
    (warning,) = [check for check in checks if check["check"] == "settings in code"]
    assert "mill and shop declare different values of retention.dead" in warning["found"]


def test_declared_settings_that_contradict_a_variable_are_left_out_and_reported(
    call, shop, monkeypatch
):
    publish(shop, name="shop", settings={"worker.lease": 60, "worker.heartbeat": 20})
    monkeypatch.setenv("MULLIGAN_WORKER__LEASE", "10")
    answer = call("doctor", "-o", "json")
    assert settings_of(answer)["worker.heartbeat"] == (5, "default")
    (warning,) = [
        check for check in json.loads(answer.out)["checks"] if check["check"] == "settings in code"
    ]
    assert "not used here: shop: worker: heartbeat (20.0)" in warning["found"]


def test_a_setting_of_a_newer_version_does_not_stop_the_commands_of_this_one(store_url):
    app = Mulligan(store_url).open()
    manifest = Mulligan(store_url, settings={"retry.max_retries": 5}).manifest("shop:app")
    manifest.settings["retry.from_the_future"] = 1
    with app.store.begin() as tx:
        publish_manifest(tx, manifest)
    with app.store.read() as tx:
        settings = apply_declared_settings(tx, app.settings)
    assert settings.retry.max_retries == 5
    app.close()


def settings_of(answer: Any) -> dict[str, tuple[Any, str]]:
    rows = json.loads(answer.out)["settings"]
    return {row["name"]: (row["value"], row["origin"]) for row in rows}


def test_the_doctor_of_an_app_shows_the_code_as_origin(call, declaring, monkeypatch):
    monkeypatch.setenv("MULLIGAN_WEB__BURST", "9")
    Mulligan().open().close()
    found = settings_of(call("doctor", "jobs:app", "-o", "json"))
    assert found["worker.lease"] == (12, "code")
    assert found["web.burst"] == (9, "environment MULLIGAN_WEB__BURST")
    assert found["worker.poll"] == (0.5, "default")
