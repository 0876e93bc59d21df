"""The alert rules and the dashboard parse, fire when they should and use exported metrics."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from doc_pages import ROOT

import mulligan.observability
from mulligan.observability.exporter import GAUGES
from mulligan.observability.metrics import COUNTERS, HISTOGRAMS
from support.promtool import MISSING, promtool

RULES = Path(mulligan.observability.__file__).parent / "rules"
TESTS = ("tests.yml", "tests-hours.yml", "tests-days.yml")
LABELS = {metric.name: set(metric.labels) for metric in (*COUNTERS, *HISTOGRAMS, *GAUGES)}
NAME = re.compile(r"\bmulligan_[a-z0-9_]+")
SELECTED = re.compile(r"\b(mulligan_[a-z0-9_]+)\{([^}]*)\}")
FETCHED = pytest.mark.timeout(240)  # promtool may have to be downloaded
PARTS = ("_bucket", "_count", "_sum")


def base(name: str) -> str:
    histograms = {f"{one.name}{part}": one.name for one in HISTOGRAMS for part in PARTS}
    return histograms.get(name, name)


def read(name: str) -> str:
    return (RULES / name).read_text(encoding="utf-8")


def alerts():
    groups = yaml.safe_load(read("alerts.yml"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def run_promtool(*arguments: str) -> None:
    tool = promtool()
    if tool is None:
        pytest.skip(MISSING)
    result = subprocess.run(
        [tool, *arguments], cwd=RULES, capture_output=True, text=True, check=False, timeout=150
    )
    assert result.returncode == 0, result.stdout + result.stderr


@FETCHED
def test_promtool_finds_nothing_wrong_with_the_rules():
    run_promtool("check", "rules", "alerts.yml")


@FETCHED
def test_every_alert_fires_when_it_should_and_only_then():
    run_promtool("test", "rules", *TESTS)


def test_every_alert_has_a_case_that_fires_and_one_that_does_not():
    cases = [
        case
        for name in TESTS
        for case in yaml.safe_load(read(name))["tests"]
        if "promql_expr_test" in case
    ]
    tried = {
        (case["name"].partition(":")[0], bool(case["promql_expr_test"][0]["exp_samples"]))
        for case in cases
    }
    assert tried == {(rule["alert"], fires) for rule in alerts() for fires in (True, False)}


@pytest.mark.parametrize("name", ["alerts.yml", "dashboard.json", *TESTS])
def test_every_metric_in_the_rules_is_exported_with_its_labels(name):
    text = read(name).replace('\\"', '"')
    assert {base(found) for found in NAME.findall(text)} <= set(LABELS)
    for metric, selector in SELECTED.findall(text):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        assert labels <= LABELS[base(metric)] | {"le", "instance"}, (metric, labels)


def test_every_alert_has_a_summary_and_a_runbook_link():
    page = (ROOT / "docs" / "operate" / "monitoring.md").read_text(encoding="utf-8")
    anchors = {
        line.lstrip("# ").strip().lower().replace(" ", "-")
        for line in page.splitlines()
        if line[:1] == "#"
    }
    for rule in alerts():
        annotations = rule["annotations"]
        assert annotations["summary"], rule["alert"]
        assert annotations["description"], rule["alert"]
        page_name, _, anchor = annotations["runbook_url"].partition("#")
        assert (page_name, anchor in anchors) == ("docs/operate/monitoring.md", True), annotations[
            "runbook_url"
        ]
        assert rule["labels"]["severity"] in {"page", "warn", "ticket"}


def test_every_dashboard_panel_has_targets_and_a_unique_id():
    board = json.loads(read("dashboard.json"))
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert all(panel["targets"] for panel in board["panels"] if panel["type"] != "row")


def test_no_label_names_a_job_a_batch_a_group_or_an_owner():
    assert {label for labels in LABELS.values() for label in labels}.isdisjoint(
        {"job", "job_id", "batch", "batch_id", "fingerprint", "group", "owner"}
    )
    assert all(name.startswith("mulligan_") for name in LABELS)
