"""`mulligan metrics`: numbers on stdout, and two files to use them with."""

from __future__ import annotations

import json

import yaml


def test_metrics_are_printed_in_prometheus_format(call, app):
    app.open().enqueue("add", {"a": 1, "b": 2})
    answer = call("metrics")
    assert (answer.code, answer.err) == (0, "")
    assert '\nmulligan_queue_jobs{phase="ready",queue="default"} 1.0\n' in answer.out
    assert answer.out.endswith("\n")


def test_the_rules_and_the_dashboard_need_no_database(call, tmp_path, monkeypatch):
    monkeypatch.setenv("MULLIGAN_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    assert yaml.safe_load(call("metrics", "rules").out)["groups"]
    assert json.loads(call("metrics", "dashboard").out)["title"] == "Mulligan"


def test_runbook_links_use_the_base_url_of_the_documentation(call):
    output = call("metrics", "rules", "--docs", "https://wiki.example/m/").out
    assert "runbook_url: https://wiki.example/m/operate/monitoring.md#jobs-fail\n" in output
    assert "runbook_url: docs/" not in output


def test_an_unknown_argument_is_refused(call):
    assert call("metrics", "everything").code == 2


def test_numbers_rules_and_dashboard_have_the_configured_prefix(call, app, monkeypatch):
    monkeypatch.setenv("MULLIGAN_METRICS_PREFIX", "shop_")
    app.open()
    assert "\nshop_workers" in call("metrics").out
    for what in ("rules", "dashboard"):
        output = call("metrics", what).out
        assert "shop_job_ends_total" in output
        assert "mulligan_" not in output
