"""A cause is assigned to a person, who is shown wherever the cause is."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from mulligan import Fail, Mulligan, Policy
from mulligan.access.keys import Sessions
from mulligan.cli import main
from mulligan.core.errors import NotFound
from mulligan.http.app import create_app


@pytest.fixture
def cause(app: Mulligan) -> str:
    """Return the fingerprint of a cause with one dead job."""

    @app.job(name="fails", policy=Policy(max_retries=0))
    def fails() -> Fail:
        return Fail("BROKEN", "no")

    fails.options(owner="acme").enqueue()
    app.run_inline()
    return app.failures.groups()[0].fingerprint


def test_a_cause_keeps_its_person_through_all_other_marks(app: Mulligan, cause: str) -> None:
    assert app.failures.groups()[0].assignee == ""
    app.failures.mute(cause, reason="known")
    assigned = app.failures.assign(cause, "ada")
    assert (assigned.assignee, assigned.state, assigned.note) == ("ada", "muted", "known")
    assert app.failures.resolve(cause).assignee == "ada"
    assert app.failures.reopen(cause).assignee == "ada"
    assert app.failures.groups()[0].assignee == "ada"
    assert app.failures.assign(cause, "").assignee == ""


def test_an_owner_has_a_person_of_their_own(app: Mulligan, cause: str) -> None:
    app.failures.assign(cause, "ada")
    app.failures.assign(cause, "bob", owner="acme")
    assert app.failures.get(cause).assignee == "ada"
    assert app.failures.get(cause, owner="acme").assignee == "bob"


def test_an_unknown_cause_is_refused(app: Mulligan) -> None:
    with pytest.raises(NotFound, match="unknown failure group"):
        app.failures.assign("v2-000000000000", "ada")


def test_the_command_assigns_and_the_dashboard_shows_the_person(
    app: Mulligan,
    cause: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", app.settings.database_url)
    assert main(["failures", "assign", cause, "ada"]) == 0
    capsys.readouterr()
    assert main(["failures", "show", cause]) == 0
    assert "assigned to ada" in capsys.readouterr().out
    with TestClient(create_app(app.settings), base_url="http://localhost") as client:
        client.post("/sign-in", data={"link": Sessions(lambda: app.store).create_link()})
        assert 'value="ada"' in client.get(f"/failures/{cause}").text
        assert " · ada" in client.get("/failures").text
