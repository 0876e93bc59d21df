"""Causes with a fingerprint of an older scheme stay readable and can be repaired."""

from __future__ import annotations

import pytest

from mulligan import Mulligan, Policy, State
from mulligan.cli import main
from mulligan.testing import force
from support.app_tools import count_events
from support.store import sql

OLD = "v2-0123456789ab"  # time limits of all kinds, before v3


@pytest.fixture
def jobs(app: Mulligan) -> list[str]:
    """Return two jobs that died of a time limit. Their cause has a fingerprint of the old scheme."""

    @app.job(name="late", policy=Policy(max_retries=0))
    def late() -> None: ...

    count_events(app)
    force(app, late, "timeout", times=2)
    found = [late.options(owner="acme").enqueue().id for _ in range(2)]
    app.run_inline()
    count_events(app)
    new = {"new": app.failures.groups()[0].fingerprint, "old": OLD}
    for column in ("job SET died_group", "attempt SET fingerprint", "cause SET fingerprint"):
        name = column.rpartition(" ")[2]
        sql(app.store, f"UPDATE {{p}}{column} = :old WHERE {name} = :new", new)
    return found


def test_a_cause_of_the_old_scheme_is_read_marked_and_retried(
    app: Mulligan,
    jobs: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (listed,) = app.failures.groups()
    assert (listed.fingerprint, listed.count, listed.codes) == (OLD, 2, {"TIMEOUT": 2})
    assert app.jobs.count(f"group:{OLD}") == 2
    assert app.failures.assign(OLD, "ada").assignee == "ada"
    assert app.failures.mute(OLD, reason="known").state == "muted"
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", app.settings.database_url)
    assert main(["failures", "show", OLD]) == 0
    assert "TIMEOUT" in capsys.readouterr().out
    app.failures.reopen(OLD)
    app.operations.start("retry", f"state:dead group:{OLD}", steps=["rest"], rate=1000)
    for _ in range(3):
        app.run_inline()
    assert {app.jobs.get(job).state for job in jobs} == {State.SUCCEEDED}


def test_a_new_death_of_the_same_kind_begins_a_group_of_the_new_scheme(
    app: Mulligan, jobs: list[str]
) -> None:
    force(app, "late", "timeout")
    app.enqueue("late")
    app.run_inline()
    count_events(app)
    names = {group.fingerprint: group.count for group in app.failures.groups()}
    assert names.pop(OLD) == 2
    ((name, count),) = names.items()
    assert name.startswith("v3-")
    assert count == 1
