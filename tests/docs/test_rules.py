"""The alert rules and the dashboard: they parse, they fire when they should, and they name what there is."""

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
FETCHED = pytest.mark.timeout(240)  # promtool may have to be fetched first
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
    told = subprocess.run(
        [tool, *arguments], cwd=RULES, capture_output=True, text=True, check=False, timeout=150
    )
    assert told.returncode == 0, told.stdout + told.stderr


@FETCHED
def test_promtool_finds_nothing_wrong_with_the_rules():
    run_promtool("check", "rules", "alerts.yml")


@FETCHED
def test_every_alert_fires_when_it_should_and_only_then():
    run_promtool("test", "rules", *TESTS)


def test_of_every_alert_a_case_is_tried_that_fires_and_one_that_does_not():
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
def test_every_metric_that_is_named_is_exported_with_the_labels_it_is_asked_for(name):
    text = read(name).replace('\\"', '"')
    assert {base(found) for found in NAME.findall(text)} <= set(LABELS)
    for metric, selector in SELECTED.findall(text):
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        assert asked <= LABELS[base(metric)] | {"le", "instance"}, (metric, asked)


def test_every_alert_says_what_it_is_and_where_to_read_on():
    page = (ROOT / "docs" / "operate" / "monitoring.md").read_text(encoding="utf-8")
    anchors = {
        line.lstrip("# ").strip().lower().replace(" ", "-")
        for line in page.splitlines()
        if line[:1] == "#"
    }
    for rule in alerts():
        said = rule["annotations"]
        assert said["summary"], rule["alert"]
        assert said["description"], rule["alert"]
        page_name, _, anchor = said["runbook_url"].partition("#")
        assert (page_name, anchor in anchors) == ("docs/operate/monitoring.md", True), said[
            "runbook_url"
        ]
        assert rule["labels"]["severity"] in {"page", "warn", "ticket"}


def test_the_dashboard_is_whole():
    board = json.loads(read("dashboard.json"))
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert all(panel["targets"] for panel in board["panels"] if panel["type"] != "row")


def test_no_label_names_a_job_a_batch_a_group_or_an_owner():
    assert {label for labels in LABELS.values() for label in labels}.isdisjoint(
        {"job", "job_id", "batch", "batch_id", "fingerprint", "group", "owner"}
    )
    assert all(name.startswith("mulligan_") for name in LABELS)
