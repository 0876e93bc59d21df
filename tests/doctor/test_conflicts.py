"""Two apps on one database that use one name for different things."""

from __future__ import annotations

from mulligan import Mulligan
from mulligan.doctor.runtime import runtime_checks
from mulligan.manifest.declared import publish_manifest


def run_app(url, name, handler, cron="0 3 * * *", release=""):
    """Publish an app as its worker would."""
    app = Mulligan(url, name=name, release=release)
    kind = app.job(name="work")(handler)
    app.schedule("nightly", cron, kind, {"n": 1} if handler is _by_number else {"s": "x"})
    with app.store.begin() as tx:
        publish_manifest(tx, app.manifest("jobs:app"))
    app.close()
    return app


def _by_number(n: int) -> None: ...


def _by_text(s: str) -> None: ...


def apps_check(app):
    checks = runtime_checks(app.store, app.settings)
    found = [(check.status, check.found) for check in checks if check.check == "apps"]
    app.close()
    return found


def test_doctor_warns_of_two_apps_that_declare_one_name_differently(store_url):
    run_app(store_url, "billing", _by_number)
    app = run_app(store_url, "shop", _by_text)
    (kind, schedule) = apps_check(app)
    assert kind[0] == "warn"
    assert kind[1].startswith("billing and shop both have kind work with different arguments: ")
    assert "both have schedule nightly, declared differently" in schedule[1]


def test_doctor_accepts_equal_names_and_releases_that_differ(store_url):
    run_app(store_url, "shop", _by_number, release="r1")
    run_app(store_url, "billing", _by_text)
    app = run_app(store_url, "shop", _by_text, release="r2")
    assert [status for status, _ in apps_check(app)] == ["ok"]
