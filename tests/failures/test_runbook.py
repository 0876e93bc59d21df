"""The runbook of a rule is shown where operators look for the cause."""

from __future__ import annotations

from fastapi.testclient import TestClient

from mulligan import Fail, Rule
from mulligan.access.keys import Sessions
from mulligan.cli import main
from mulligan.http.app import create_app
from support.app_tools import run_job

RUNBOOK = "https://wiki.example/slow-gateway"


def test_the_runbook_of_a_rule_is_shown_with_the_cause(make_app, capsys, monkeypatch):
    app = make_app()
    app.rules.add(Rule("mine", verdict="MY_CODE", code="MY_CODE", cls="permanent", runbook=RUNBOOK))

    @app.job(name="fails")
    def fails() -> Fail:
        return Fail("MY_CODE", "the gateway is slow")

    run_job(app, fails.enqueue())
    [listed] = app.failures.groups()
    group = app.failures.get(listed.fingerprint, private=True)
    assert group.sample.private["runbook"] == RUNBOOK
    assert app.failures.get(group.fingerprint).sample.private is None, "not for owners"
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", app.settings.database_url)
    assert main(["failures", "show", group.fingerprint, "--private"]) == 0
    assert RUNBOOK in capsys.readouterr().out
    with TestClient(create_app(app.settings), base_url="http://localhost") as client:
        client.post("/sign-in", data={"link": Sessions(lambda: app.store).create_link()})
        assert RUNBOOK in client.get(f"/failures/{group.fingerprint}").text
