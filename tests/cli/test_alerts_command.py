"""`mulligan alerts`: thresholds, silences, and invalid rules."""

from __future__ import annotations

import json


def test_rules_show_configured_thresholds_and_can_be_silenced(call, folder):
    (folder / "mulligan.toml").write_text('[[alerts.rules]]\nname = "slow_jobs"\nabove = 30\n')
    call("migrate")
    rules = {rule["name"]: rule for rule in json.loads(call("alerts", "rules", "-o", "json").out)}
    assert rules["slow_jobs"]["above"] == 30
    assert json.loads(call("alerts", "list", "-o", "json").out) == []
    silenced = call(
        "alerts", "silence", "slow_jobs", "--until", "2h", "--reason", "the import", "-o", "json"
    )
    assert json.loads(silenced.out)["silenced_until"]
    assert "silent for" in call("alerts", "rules", "-o", "tsv").out
    assert call("alerts", "silence", "slow_jobs", "--off").code == 0
    assert "silent for" not in call("alerts", "rules", "-o", "tsv").out
    assert call("alerts", "silence", "slow_job").code == 3


def test_a_worker_refuses_to_start_with_an_invalid_rule(start, folder):
    (folder / "mulligan.toml").write_text('[[alerts.rules]]\nname = "slow_jobs"\nabov = 30\n')
    answer = start("worker", "jobs:app", MULLIGAN_DATABASE_URL="sqlite:///here.db").wait_for_exit(
        60
    )
    assert answer.code == 2
    assert "Did you mean 'above'?" in answer.err


def test_doctor_reports_an_invalid_rule(call, folder):
    (folder / "mulligan.toml").write_text('[[alerts.rules]]\nname = "slow_jobs"\nabove = "much"\n')
    call("migrate")
    assert "invalid above='much'. Use a number" in call("doctor").out
