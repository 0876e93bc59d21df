"""`mulligan metrics`: numbers on stdout, and two files to use them with."""

from __future__ import annotations

import json

import yaml


def test_the_numbers_of_a_database_are_printed_as_prometheus_reads_them(call, app):
    app.open().enqueue("add", {"a": 1, "b": 2})
    told = call("metrics")
    assert (told.code, told.err) == (0, "")
    assert '\nmulligan_queue_jobs{phase="ready",queue="default"} 1.0\n' in told.out
    assert told.out.endswith("\n")


def test_the_rules_and_the_dashboard_need_no_database(call, tmp_path, monkeypatch):
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    assert yaml.safe_load(call("metrics", "rules").out)["groups"]
    assert json.loads(call("metrics", "dashboard").out)["title"] == "Mulligan"


def test_runbook_links_get_the_address_of_the_documentation(call):
    told = call("metrics", "rules", "--docs", "https://wiki.example/m/").out
    assert "runbook_url: https://wiki.example/m/operate/monitoring.md#jobs-fail\n" in told
    assert "runbook_url: docs/" not in told


def test_what_there_is_not_is_refused(call):
    assert call("metrics", "everything").code == 2
